//! What is stored: ids, and the forms of a value.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

/// The name of an object within one store. The embedder chooses it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct StoredId(pub u64);

impl fmt::Display for StoredId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "object {}", self.0)
    }
}

/// A value of the embedder, opaque to the store.
///
/// No method is called, and no value is dropped, while the store holds a lock.
pub trait Live: Send + Sync {
    /// The value as what it is, for the embedder that knows.
    fn as_any(&self) -> &dyn std::any::Any;

    /// The memory that goes when the value is dropped, in bytes. Asked once, when the value comes.
    fn nbytes(&self) -> u64;

    /// The value, serialised; [`Frames::viewing_live`] says which part of it is the value's own
    /// memory. Called on the store's spilling thread, or by [`Pinned::frames`](crate::Pinned::frames).
    ///
    /// # Errors
    /// Whatever the embedder's serialisation says. The value is then never spilled.
    fn frames(&self) -> Result<Frames, Box<dyn Error + Send + Sync>>;
}

/// Whose memory [`Frames`] are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// Their own.
    Own,
    /// Their own, and made quickly: not kept beside a live object, but made again.
    Copy,
    /// The live object's, all but this many bytes.
    Live(u64),
    /// Other processes map it too: a mapping that was received, or a segment that was exported.
    /// The frames of a live object are `Shared` where the live object's memory is that segment.
    Shared,
}

/// A serialised value: a kind that tells the embedder how to read it, and parts.
#[derive(Clone, Debug)]
pub struct Frames {
    kind: u32,
    parts: Vec<Bytes>,
    nbytes: u64,
    memory: Memory,
}

impl Frames {
    /// Frames in memory of their own. The store writes `kind` and gives it back; it means nothing
    /// here.
    pub fn new(kind: u32, parts: Vec<Bytes>) -> Self {
        let nbytes = parts.iter().map(|part| part.len() as u64).sum();
        Frames {
            kind,
            parts,
            nbytes,
            memory: Memory::Own,
        }
    }

    /// The frames as views of the live object's memory (see [`Bytes::from_owner`]), all but `own`
    /// bytes: next to the live object only these are counted.
    pub fn viewing_live(mut self, own: u64) -> Self {
        self.memory = Memory::Live(own.min(self.nbytes));
        self
    }

    /// The frames as a copy of the live object's memory that is quickly made again: who asked for it
    /// has it, and the store does not keep it.
    pub fn copied(mut self) -> Self {
        self.memory = Memory::Copy;
        self
    }

    /// The frames as memory that other processes map too.
    pub fn shared(mut self) -> Self {
        self.memory = Memory::Shared;
        self
    }

    /// The same frames, no longer shared.
    pub(crate) fn unshared(&self) -> Self {
        Frames {
            memory: Memory::Own,
            ..self.clone()
        }
    }

    /// The embedder's kind.
    pub fn kind(&self) -> u32 {
        self.kind
    }

    /// The parts, in order. A part that was read from disk is aligned to 64 bytes.
    pub fn parts(&self) -> &[Bytes] {
        &self.parts
    }

    /// The sum of the parts' lengths, in bytes.
    pub fn nbytes(&self) -> u64 {
        self.nbytes
    }

    /// Whose memory they are.
    pub fn memory(&self) -> Memory {
        self.memory
    }
}

/// Where the memory is of a live object that was made from frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overlap {
    /// Its own: the parts were copied.
    None,
    /// The parts': it views them, so both together are counted once.
    Frames,
}

/// A form in which an object comes into the store.
#[derive(Clone)]
pub enum Form {
    /// A live object.
    Live(Arc<dyn Live>),
    /// A serialised one.
    Frames(Arc<Frames>),
}

impl fmt::Debug for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Form::Live(_) => f.write_str("Live(..)"),
            Form::Frames(frames) => f.debug_tuple("Frames").field(frames).finish(),
        }
    }
}

impl From<Arc<dyn Live>> for Form {
    fn from(live: Arc<dyn Live>) -> Self {
        Form::Live(live)
    }
}

impl From<Frames> for Form {
    fn from(frames: Frames) -> Self {
        Form::Frames(Arc::new(frames))
    }
}

impl From<Arc<Frames>> for Form {
    fn from(frames: Arc<Frames>) -> Self {
        Form::Frames(frames)
    }
}
