//! The access list of the nodes that a handle creates.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::Serialize;

/// The access list of the nodes that a session creates. Of a lock, these are the lock's path and everything below it. A leased lock
/// and a lock of `NodeFormat::Numbered` keep their nodes in the parent of the path, so it counts as their own,
/// unless it is `/locks`, or exists already: a node that leads to locks further down was created as a shared one.
///
/// Nodes of the kinds [`NodeKind::Shared`](crate::ensemble::NodeKind::Shared) and
/// [`NodeKind::SharedContainer`](crate::ensemble::NodeKind::SharedContainer), such as the parents that
/// [`make_path`](crate::ensemble::make_path) creates, and those at and below `/lockkeeper`, are shared by all clients. Clients that this
/// list does not name may create, delete, read and write there too, so that a private lock does not keep others from their own locks. In
/// `/lockkeeper` itself, they may only create and read. `Admin::set_up` of `lockkeeper` gives the shared nodes other lists.
///
/// The rights to a *parent* decide who may delete a node. The right to write to the node itself decides who may request
/// its release. So every client that may contend may also break. A list that lets other clients read a lock does not
/// let them request its release.
///
/// Existing nodes keep their lists. The first contender's list must admit all clients that contend for the lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockAcl {
    /// Every client may do anything. Most recipes do this, and it works on a new server.
    #[default]
    Open,
    /// Clients with the same credential may do anything; other clients may read. Needs a credential
    /// ([`Options::credentials`](crate::Options::credentials), `Builder::credential`), a client certificate, or an embedded server.
    Visible,
    /// Clients with the same credential may do anything; other clients nothing. Needs what [`LockAcl::Visible`] needs.
    Private,
    /// These clients may do this. It is read from text, as the settings and the command do:
    ///
    /// ```
    /// use lockkeeper_session::acl::LockAcl;
    ///
    /// let list: LockAcl = "sasl:jobs:cdrwa,world:anyone:r".parse()?;
    /// assert!("sasl:jobs".parse::<LockAcl>().is_err());
    /// # Ok::<(), lockkeeper_session::acl::AclError>(())
    /// ```
    List(AclList),
}

/// The entries of an access list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclList(pub(crate) Arc<[AclEntry]>);

/// What one identity may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AclEntry {
    pub(crate) scheme: String,
    pub(crate) id: String,
    /// Some of the letters of [`PERMS`].
    pub(crate) perms: String,
}

/// The letters for create, delete, read, write and administrate, as in ZooKeeper's command line.
const PERMS: &str = "cdrwa";

/// What every client may do in a node that all clients share: contending needs it.
pub(crate) const CONTENDS: &str = "cdrw";

/// What clients without the right to administrate may do in the parent of the registers. The right to delete a register belongs to
/// its parent.
pub(crate) const REGISTERS: &str = "cr";

/// What `Admin::set_up` did to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SetUp {
    /// It did not exist, and was created with the list.
    Created,
    /// It existed, and got the list.
    Changed,
    /// It existed, and was not changed.
    Unchanged,
}

/// A node that all clients share, as `Admin::set_up` left it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedNode {
    /// Its path.
    pub path: String,
    /// What was done to it.
    pub set_up: SetUp,
    /// Its list, without the hashes of passwords; `None` if the server does not show it to this client.
    pub acl: Option<LockAcl>,
    /// Whether the list lets every client do what contending for locks needs there; `false` if it is unknown.
    pub is_open: bool,
}

/// A text that is no access list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{entry:?} is no entry of an access list: {problem}")]
pub struct AclError {
    entry: String,
    problem: String,
}

impl LockAcl {
    /// Returns the list with which all clients contend, and only the creator's credentials administrate: that of the nodes that
    /// `Admin::set_up` creates without a list.
    pub fn open_to_contend() -> LockAcl {
        LockAcl::Private.shared()
    }

    fn entries(&self) -> Vec<AclEntry> {
        let entry = |scheme: &str, id: &str, perms: &str| AclEntry {
            scheme: scheme.to_owned(),
            id: id.to_owned(),
            perms: perms.to_owned(),
        };
        match self {
            LockAcl::Open => vec![entry(WORLD, ANYONE, PERMS)],
            LockAcl::Visible => vec![entry("auth", "", PERMS), entry(WORLD, ANYONE, "r")],
            LockAcl::Private => vec![entry("auth", "", PERMS)],
            LockAcl::List(AclList(entries)) => entries.to_vec(),
        }
    }

    /// The same list, with `perms` for everyone in addition.
    fn with_world(&self, perms: &str) -> LockAcl {
        let (world, mut entries): (Vec<_>, Vec<_>) = self.entries().into_iter().partition(AclEntry::is_world);
        let has = |letter: &char| perms.contains(*letter) || world.iter().any(|entry| entry.perms.contains(*letter));
        let perms = PERMS.chars().filter(has).collect();
        entries.push(AclEntry { scheme: WORLD.to_owned(), id: ANYONE.to_owned(), perms });
        LockAcl::List(AclList(entries.into()))
    }

    /// The list of a node that all clients share, if this is the list of the locks of the client that creates it.
    pub(crate) fn shared(&self) -> LockAcl {
        self.with_world(CONTENDS)
    }

    /// The same list, in which entries without the letter `unless` have at most these rights.
    pub(crate) fn limited_to(&self, most: &str, unless: char) -> LockAcl {
        let entries = self.entries().into_iter().filter_map(|mut entry| {
            if !entry.perms.contains(unless) {
                entry.perms.retain(|letter| most.contains(letter));
            }
            (!entry.perms.is_empty()).then_some(entry)
        });
        LockAcl::List(AclList(entries.collect()))
    }

    /// The list of the epoch: clients without the right to administrate may read it, and no more. Without it they get no token.
    pub(crate) fn of_epoch(&self) -> LockAcl {
        self.limited_to("r", 'a').with_world("r")
    }

    /// Returns whether every client has all of these rights, which are letters of `cdrwa`.
    pub fn gives_everyone(&self, perms: &str) -> bool {
        let world: Vec<_> = self.entries().into_iter().filter(AclEntry::is_world).collect();
        perms.chars().all(|letter| world.iter().any(|entry| entry.perms.contains(letter)))
    }

    /// Returns the list without the hashes of passwords: `x` is in their place, as servers show a list to clients that may
    /// not change it.
    pub(crate) fn without_hashes(self) -> LockAcl {
        let LockAcl::List(AclList(entries)) = self else { return self };
        let masked = entries.iter().map(|entry| match entry.id.split_once(':') {
            Some((user, _)) if entry.scheme == "digest" => AclEntry { id: format!("{user}:x"), ..entry.clone() },
            _ => entry.clone(),
        });
        LockAcl::List(AclList(masked.collect()))
    }

    /// Whether it refers to the credentials of the client that creates a node.
    pub(crate) fn names_the_creator(&self) -> bool {
        match self {
            LockAcl::Open => false,
            LockAcl::Visible | LockAcl::Private => true,
            LockAcl::List(AclList(entries)) => entries.iter().any(|entry| entry.scheme == "auth"),
        }
    }
}

impl AclEntry {
    fn is_world(&self) -> bool {
        self.scheme == WORLD
    }
}

impl FromStr for LockAcl {
    type Err = AclError;

    /// Reads `open`, `creator-all`, `creator-all-world-read`, or entries `SCHEME:ID:PERMS` with commas between them. An id may
    /// contain commas, as that of a certificate does: `x509:CN=client,O=Acme:cdrwa`.
    fn from_str(text: &str) -> Result<Self, AclError> {
        Ok(match text {
            "open" => LockAcl::Open,
            "creator-all" => LockAcl::Private,
            "creator-all-world-read" => LockAcl::Visible,
            entries => LockAcl::List(AclList(split(entries).into_iter().map(entry).collect::<Result<_, _>>()?)),
        })
    }
}

/// The scheme of everyone, and its only id.
const WORLD: &str = "world";
const ANYONE: &str = "anyone";

/// The schemes of ZooKeeper. After a comma, each of them begins an entry.
const SCHEMES: [&str; 7] = ["auth", "digest", "ip", "sasl", "super", "world", "x509"];

/// Splits a list at the commas between its entries. Another scheme begins an entry only if the entry before it is complete;
/// otherwise the comma belongs to the id.
fn split(text: &str) -> Vec<&str> {
    let (mut entries, mut start) = (Vec::new(), 0);
    for (at, _) in text.match_indices(',') {
        let (before, rest) = (&text[start..at], &text[at + 1..]);
        let is_whole = || before.rsplit_once(':').is_some_and(|(_, perms)| are_perms(perms));
        let begins = rest.split_once(':').is_some_and(|(scheme, _)| {
            let is_word = !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric());
            SCHEMES.contains(&scheme) || (is_word && is_whole())
        });
        if begins || rest.is_empty() {
            entries.push(before);
            start = at + 1;
        }
    }
    entries.push(&text[start..]);
    entries
}

fn are_perms(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|letter| PERMS.contains(letter))
}

/// Reads an entry. The id may contain colons and commas.
fn entry(text: &str) -> Result<AclEntry, AclError> {
    let fault = |problem: &str| AclError { entry: text.to_owned(), problem: problem.to_owned() };
    let (scheme, rest) = text.split_once(':').ok_or_else(|| fault("it has no colon"))?;
    let (id, perms) = rest.rsplit_once(':').ok_or_else(|| fault("it has only one colon"))?;
    if scheme.is_empty() {
        return Err(fault("its scheme is empty"));
    }
    if (scheme == "world") != (id == "anyone") {
        return Err(fault("the scheme world has the id anyone, and no other scheme has it"));
    }
    if !are_perms(perms) {
        return Err(fault(&format!("its permissions are not letters of {PERMS}")));
    }
    Ok(AclEntry { scheme: scheme.to_owned(), id: id.to_owned(), perms: perms.to_owned() })
}

impl fmt::Display for LockAcl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockAcl::Open => f.write_str("open"),
            LockAcl::Visible => f.write_str("creator-all-world-read"),
            LockAcl::Private => f.write_str("creator-all"),
            LockAcl::List(AclList(entries)) => {
                for (at, AclEntry { scheme, id, perms }) in entries.iter().enumerate() {
                    let comma = if at == 0 { "" } else { "," };
                    write!(f, "{comma}{scheme}:{id}:{perms}")?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_list_is_read_as_it_is_written() {
        let all = [
            "open",
            "creator-all",
            "creator-all-world-read",
            "world:anyone:r",
            "digest:a:x=:cdrwa,ip:::1:r",
            "auth::r",
            "x509:CN=client,O=Acme:cdrwa",
            "world:anyone:r,x509:CN=client,OU=a:b,O=Acme:cdrwa,custom:me:r",
            "sasl:smith,joe:cdrwa",
        ];
        for text in all {
            assert_eq!(text.parse::<LockAcl>().map(|acl| acl.to_string()), Ok(text.to_owned()));
        }
        let entries = split("world:anyone:r,x509:CN=client,OU=a:b,O=Acme:cdrwa,custom:me:r");
        assert_eq!(entries, ["world:anyone:r", "x509:CN=client,OU=a:b,O=Acme:cdrwa", "custom:me:r"]);
        for wrong in [
            "",
            "private",
            "digest:a",
            ":a:r",
            "ip:127.0.0.1:",
            "ip:127.0.0.1:x",
            "world:me:r",
            "ip:anyone:r",
            "auth::r,",
            "auth::r,,world:anyone:r",
            "sasl:jobs:crx,world:anyone:r",
            "sasl:jobs,world:anyone:r",
        ] {
            assert!(wrong.parse::<LockAcl>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn in_shared_nodes_everyone_contends_and_only_the_list_administrates() {
        let shared = |text: &str| text.parse::<LockAcl>().map(|acl| acl.shared().to_string());
        for (list, expected) in [
            ("open", "world:anyone:cdrwa"),
            ("creator-all", "auth::cdrwa,world:anyone:cdrw"),
            ("creator-all-world-read", "auth::cdrwa,world:anyone:cdrw"),
            ("world:anyone:r,sasl:jobs:cdrwa", "sasl:jobs:cdrwa,world:anyone:cdrw"),
        ] {
            assert_eq!(shared(list), Ok(expected.to_owned()), "{list}");
        }
    }

    #[test]
    fn without_the_right_to_administrate_registers_are_only_added_and_the_epoch_is_only_read() {
        let list: LockAcl = "sasl:ops:cdrwa,sasl:jobs:cdrw,ip:127.0.0.1:w,world:anyone:cr".parse().unwrap();
        assert_eq!(list.limited_to(REGISTERS, 'a').to_string(), "sasl:ops:cdrwa,sasl:jobs:cr,world:anyone:cr");
        assert_eq!(list.of_epoch().to_string(), "sasl:ops:cdrwa,sasl:jobs:r,world:anyone:r");
        assert_eq!(LockAcl::Open.of_epoch().to_string(), "world:anyone:cdrwa");
        assert_eq!(LockAcl::Private.of_epoch().to_string(), "auth::cdrwa,world:anyone:r");
    }

    #[test]
    fn everyone_has_the_rights_of_all_entries_of_the_world() {
        let list: LockAcl = "world:anyone:cd,sasl:ops:cdrwa,world:anyone:r".parse().unwrap();
        assert!(list.gives_everyone("cdr") && !list.gives_everyone("cdrw"));
    }
}
