//! Messages that share columns.

use super::WireError;

/// The columns of messages that are being written.
pub trait Family: Default {
    /// The section's field.
    const FIELD: u32;

    fn is_empty(&self) -> bool;

    /// How long [`Family::write`] makes it.
    fn written(&mut self) -> usize;

    /// Appends the columns as fields, and empties them.
    fn write(&mut self, into: &mut Vec<u8>);
}

/// The columns of messages that are being read.
pub trait Rows {
    type Message;

    /// The next message.
    fn next(&mut self) -> Result<Option<Self::Message>, WireError>;

    /// Whether nothing is left over after the last.
    fn end(&self) -> Result<(), WireError>;
}
