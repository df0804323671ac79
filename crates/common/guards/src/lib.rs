//! Guards: checks that keep a core correct.
//!
//! A crate declares its guards with [`guards!`], and asks `Guard::Name.holds()` where it relies on
//! one. In a release build that is the constant `true`. With the feature `switch`, which only
//! simulations and tests have, a thread can be [`without`] one of them: what follows there must be
//! noticed, or the guard is untested.

//!
//! [`InvariantError`] is what the `check()` of a core returns. The caller decides what follows: a
//! simulation reports it, a test panics.

#![cfg_attr(not(feature = "switch"), no_std)]

extern crate alloc;

pub mod checks;
mod invariant;

pub use invariant::InvariantError;

/// Declares the guards of a crate: an enum with a documented variant for each.
#[macro_export]
macro_rules! guards {
    ($(#[$meta:meta])* pub enum $Guard:ident { $($(#[$doc:meta])* $Name:ident,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $Guard { $($(#[$doc])* $Name,)* }

        impl $Guard {
            /// Every guard.
            pub const ALL: &[Self] = &[$(Self::$Name,)*];

            /// Whether it is there. Only a simulation says no.
            #[inline(always)]
            pub fn holds(self) -> bool {
                $crate::holds(self.path())
            }

            /// Its name, with that of its crate.
            #[inline(always)]
            pub const fn path(self) -> &'static str {
                match self {
                    $(Self::$Name => concat!(module_path!(), "::", stringify!($Name)),)*
                }
            }
        }
    };
}

/// Whether a guard is there.
#[cfg(not(feature = "switch"))]
#[inline(always)]
pub const fn holds(_path: &str) -> bool {
    true
}

#[cfg(feature = "switch")]
pub use switch::{Without, holds, without};

#[cfg(feature = "switch")]
mod switch {
    use std::cell::Cell;

    thread_local! {
        static MISSING: Cell<Option<&'static str>> = const { Cell::new(None) };
    }

    /// Whether a guard is there, in this thread.
    #[inline]
    pub fn holds(path: &str) -> bool {
        MISSING.get().is_none_or(|missing| missing != path)
    }

    /// Removes a guard in this thread until the value is dropped; none if there is no path.
    #[must_use]
    pub fn without(path: Option<&'static str>) -> Without {
        Without(MISSING.replace(path))
    }

    /// A guard is missing as long as this lives.
    pub struct Without(Option<&'static str>);

    impl Drop for Without {
        fn drop(&mut self) {
            MISSING.set(self.0);
        }
    }
}
