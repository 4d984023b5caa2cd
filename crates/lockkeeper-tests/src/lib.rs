//! Tests of the library and of the products on it, together and on servers, and the examples of the README and the guide.

/// Compiles the README's examples.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Compiles the examples of the page about the server.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/server.md")]
struct Server;

/// Compiles the guide's examples.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../../../docs/guide/README.md")]
    struct Guide;
    #[doc = include_str!("../../../docs/guide/exclusive.md")]
    struct Exclusive;
    #[doc = include_str!("../../../docs/guide/shared.md")]
    struct Shared;
    #[doc = include_str!("../../../docs/guide/permits.md")]
    struct Permits;
    #[doc = include_str!("../../../docs/guide/priority.md")]
    struct Priority;
    #[doc = include_str!("../../../docs/guide/several.md")]
    struct Several;
    #[doc = include_str!("../../../docs/guide/losing.md")]
    struct Losing;
    #[doc = include_str!("../../../docs/guide/asking.md")]
    struct Asking;
    #[doc = include_str!("../../../docs/guide/objects.md")]
    struct Objects;
    #[doc = include_str!("../../../docs/guide/metrics.md")]
    struct Metrics;
    #[doc = include_str!("../../../docs/guide/shutdown.md")]
    struct Shutdown;
    #[doc = include_str!("../../../docs/guide/testing.md")]
    struct Testing;
    #[doc = include_str!("../../../docs/guide/errors.md")]
    struct Errors;
    #[doc = include_str!("../../../docs/guide/fencing.md")]
    struct Fencing;
    #[doc = include_str!("../../../docs/guide/from-kazoo.md")]
    struct FromKazoo;
}
