//! One value for each type: what the users of a session, or of a program's sessions, share.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// The values by their types.
#[derive(Default)]
pub(crate) struct TypeMap(Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>);

impl TypeMap {
    /// The one value of this type, created when it is first asked for.
    pub(crate) fn get<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let mut values = self.0.lock().expect("held for a look only");
        let value = values.entry(TypeId::of::<T>()).or_insert_with(|| Arc::<T>::default()).clone();
        value.downcast().expect("the key is the type")
    }
}
