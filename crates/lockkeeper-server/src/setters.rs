//! Setters of configurations.

/// Defines methods that set one field and return the whole.
macro_rules! setters {
    ($($(#[$meta:meta])* $name:ident($field:ident: $type:ty) = $value:expr;)+) => {
        $(
            $(#[$meta])*
            #[must_use]
            pub fn $name(mut self, $field: $type) -> Self {
                self.$field = $value;
                self
            }
        )+
    };
}

pub(crate) use setters;
