//! What one contender asks for: a contender's part of a lock kind. The rule of the kind is a
//! [`Discipline`](crate::Discipline).

use crate::Class;

/// What a contender asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Exclusive: no other holder.
    Exclusive,
    /// Exclusive, among readers. A reader's node may replace such a node (a downgrade), so its deletion proves
    /// less than that of an exclusive one.
    Write,
    /// Beside other readers, but no writer.
    Read,
    /// This many of the path's permits.
    Permits(u32),
    /// Exclusive; a lower class is granted first.
    Class(Class),
}

impl Mode {
    /// The label for people and in JSON.
    pub const fn label(self) -> &'static str {
        match self {
            Mode::Exclusive => "exclusive",
            Mode::Write => "write",
            Mode::Read => "read",
            Mode::Permits(_) => "permits",
            Mode::Class(_) => "class",
        }
    }

    /// The number of permits that it takes, if it asks for permits.
    pub const fn permits(self) -> Option<u32> {
        match self {
            Mode::Permits(permits) => Some(permits),
            Mode::Exclusive | Mode::Write | Mode::Read | Mode::Class(_) => None,
        }
    }

    /// Its class, if it has one.
    pub const fn class(self) -> Option<Class> {
        match self {
            Mode::Class(class) => Some(class),
            Mode::Exclusive | Mode::Write | Mode::Read | Mode::Permits(_) => None,
        }
    }

    /// Whether it holds beside contenders of the same mode.
    pub const fn reads(self) -> bool {
        match self {
            Mode::Read => true,
            Mode::Exclusive | Mode::Write | Mode::Permits(_) | Mode::Class(_) => false,
        }
    }

    /// Whether a reader's node may replace its node, so that the end of its node is not the end of its hold.
    pub const fn can_downgrade(self) -> bool {
        match self {
            Mode::Write => true,
            Mode::Exclusive | Mode::Read | Mode::Permits(_) | Mode::Class(_) => false,
        }
    }

    /// The letters that a tombstone's name has for it. `None`: a hold in this mode leaves no tombstone.
    pub(crate) fn letters(self) -> Option<String> {
        match self {
            Mode::Exclusive => Some("x".to_owned()),
            Mode::Write => Some("w".to_owned()),
            Mode::Read => Some("r".to_owned()),
            Mode::Permits(permits) => Some(format!("p{permits}")),
            Mode::Class(_) => None,
        }
    }

    /// Parses the letters of a tombstone's name.
    pub(crate) fn from_letters(letters: &str) -> Option<Mode> {
        match letters {
            "x" => Some(Mode::Exclusive),
            "w" => Some(Mode::Write),
            "r" => Some(Mode::Read),
            permits => Some(Mode::Permits(permits.strip_prefix('p')?.parse().ok().filter(|permits| *permits > 0)?)),
        }
    }
}
