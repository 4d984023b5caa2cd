//! This process, and what people read about a contender whose process has ended.

use std::sync::LazyLock;

use lockkeeper::admin::{Owner, this_process};

/// What people read about such a contender.
pub(crate) const GONE: &str = "its process is no longer on this machine; the node goes when its session ends";

/// This process, as nodes show it. The name of its user may come from a directory of users, so it is asked for once.
pub(crate) static HERE: LazyLock<Owner> = LazyLock::new(this_process);
