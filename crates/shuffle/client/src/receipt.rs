//! What one run of a map has written.

use treadle_shuffle::Receipt as Inner;
use treadle_shuffle_wire::{decode_shuffled, encode_shuffled};

use crate::{At, Error};

/// What one run of a map has written, by which servers compare their rows. The caller commits those that count, one for
/// each map. [Its bytes](Self::to_bytes) can be sent to the process that commits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Receipt(Inner);

impl Receipt {
    pub(crate) fn new(receipt: Inner) -> Self {
        Self(receipt)
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.0
    }

    /// The map.
    pub fn map(&self) -> u32 {
        self.0.transfer.map
    }

    /// How many rows it has written.
    pub fn rows(&self) -> u64 {
        self.0.tally().rows
    }

    /// Bytes of these rows, before compression. A record has eight bytes more than its own.
    pub fn bytes(&self) -> u64 {
        self.0.tally().bytes
    }

    /// The receipt as bytes, for other processes. Python's `Receipt.data` has the same.
    pub fn to_bytes(&self) -> Vec<u8> {
        encode_shuffled(&self.0)
    }

    /// The receipt with these bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`]: they are none.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        decode_shuffled(bytes)
            .map(Self)
            .map_err(|error| Error::Invalid {
                at: At::Service("reading a receipt".into()),
                reason: error.to_string(),
            })
    }
}
