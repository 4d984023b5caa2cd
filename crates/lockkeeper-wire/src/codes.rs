//! Enumerations whose values are numbers on the wire.

/// Defines an enumeration with its numbers, in their order.
macro_rules! codes {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $variant:ident = $number:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(i32)]
        pub enum $name {
            $($(#[$doc])* $variant = $number,)+
        }

        impl $name {
            /// Every value, in the order of the definition.
            pub const ALL: [Self; [$($number),+].len()] = [$(Self::$variant),+];

            /// Returns the value with this number on the wire.
            pub fn from_i32(number: i32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)+
                    _ => None,
                }
            }

            /// Returns the number on the wire.
            pub fn as_i32(self) -> i32 {
                self as i32
            }
        }
    };
}

pub(crate) use codes;
