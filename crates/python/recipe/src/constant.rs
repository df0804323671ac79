//! Constants that are too large for a recipe: they become inputs of the tasks that read them.

use crate::encoder::shorten;
use bytes::Bytes;
use pyo3::prelude::*;
use treadle_serialise::{self as serialise, Encoded};
use treadle_types::Value;

/// A large constant of a submission.
pub struct Constant {
    /// Its key: `treadle-constant-<hash of the content>`, and that of its owner if it has one.
    pub key: String,
    /// The object itself.
    pub object: Py<PyAny>,
    /// What is sent; most of it views the object's memory.
    pub encoded: Encoded,
    pub(crate) hash: u128,
    /// Nobody can write to the object: tasks may share it.
    pub(crate) is_frozen: bool,
}

impl Constant {
    /// A constant whose readers share one object. It has a key of its own beside that of its content:
    /// what they write to it is seen by nobody else.
    pub(crate) fn shared_by(&self, py: Python<'_>, owner: u128) -> Self {
        Self {
            key: format!("{}-{owner:032x}", key(self.hash)),
            object: self.object.clone_ref(py),
            encoded: self.encoded.clone(),
            hash: self.hash,
            is_frozen: self.is_frozen,
        }
    }
}

/// Who shares a constant, by a name.
pub(crate) fn owner(name: &[u8]) -> u128 {
    shorten(&blake3::hash(name))
}

/// The frames of an object and their hash.
///
/// # Errors
/// When it cannot be pickled.
pub(crate) fn encode(object: &Bound<'_, PyAny>) -> PyResult<(Encoded, u128)> {
    let encoded = serialise::encode(object)?;
    let hash = object.py().detach(|| hash(encoded.kind, &encoded.frames));
    Ok((encoded, hash))
}

fn hash(kind: u32, frames: &[Bytes]) -> u128 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&kind.to_le_bytes());
    for frame in frames {
        hasher.update(&(frame.len() as u64).to_le_bytes());
        hasher.update(frame);
    }
    shorten(&hasher.finalize())
}

/// Whether frames are still those that an encoded key names: somebody may have written to the object
/// whose memory they view.
pub fn is_intact(encoded_key: &[u8], kind: u32, frames: &[Bytes]) -> bool {
    // The hash of its owner may follow.
    let is_named = |name: &String| name.starts_with(&key(hash(kind, frames)));
    matches!(Value::from_bytes(encoded_key), Ok(Value::Str(name)) if is_named(&name))
}

/// The key of a constant.
pub(crate) fn key(hash: u128) -> String {
    format!("treadle-constant-{hash:032x}")
}
