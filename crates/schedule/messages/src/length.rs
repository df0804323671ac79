//! How long messages may be.

use alloc::string::String;

/// The longest message between nodes, in bytes. Whoever sends one makes sure that it is no longer: the
/// receiver could only end the connection.
pub const LARGEST_MESSAGE: u64 = 256 << 20;
/// The longest argument or answer of a call. The rest of its message, with what the scheduler says of
/// who asked, takes less than the difference.
pub const LARGEST_VALUE: usize = (LARGEST_MESSAGE as usize) - (1 << 20);

/// What somebody wants to say fits into no message, and was not sent.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{what} takes {bytes} bytes, and at most {most} go into a call: scatter large values and pass \
     their futures, or write them to a file"
)]
pub struct TooLong {
    pub what: String,
    /// Its length.
    pub bytes: usize,
    /// The limit.
    pub most: usize,
}

/// Whether something of so many bytes, called `what`, fits into a call.
///
/// # Errors
/// For something that is too long for a message: it is not to be sent.
pub fn fits(bytes: usize, what: impl FnOnce() -> String) -> Result<(), TooLong> {
    if bytes <= LARGEST_VALUE {
        return Ok(());
    }
    Err(TooLong {
        what: what(),
        bytes,
        most: LARGEST_VALUE,
    })
}
