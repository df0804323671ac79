//! What a core's `check()` returns.

use alloc::string::{String, ToString};
use core::fmt;

/// An invariant that does not hold: a bug of the core that was checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InvariantError(String);

impl InvariantError {
    /// Takes what does not hold.
    pub fn new(what: impl ToString) -> Self {
        Self(what.to_string())
    }
}

impl fmt::Display for InvariantError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl core::error::Error for InvariantError {}

/// For simulations, which collect the text of whatever does not hold.
impl From<InvariantError> for String {
    fn from(error: InvariantError) -> Self {
        error.0
    }
}

/// Returns an [`InvariantError`] with a message unless a condition holds.
#[macro_export]
macro_rules! ensure {
    ($holds:expr, $($message:tt)+) => {{
        let holds: bool = $holds;
        if !holds {
            return Err($crate::InvariantError::new(format_args!($($message)+)));
        }
    }};
}

/// Returns an [`InvariantError`] with a message and both values unless they are equal.
#[macro_export]
macro_rules! ensure_eq {
    ($left:expr, $right:expr, $($message:tt)+) => {
        match (&$left, &$right) {
            (left, right) => $crate::ensure!(
                *left == *right,
                "{}: {left:?} is not {right:?}",
                format_args!($($message)+)
            ),
        }
    };
}
