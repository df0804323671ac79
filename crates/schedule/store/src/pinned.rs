//! An object in use.

use std::fmt;
use std::sync::Arc;

use crate::ledger::{Cost, Key};
use crate::spill::serialise;
use crate::state::{Inner, cost_of_frames};
use crate::{Frames, Live, Memory, Overlap, StoreError, StoredId};

/// An object that stays in memory as long as this lives, also when it is overwritten or freed
/// meanwhile.
pub struct Pinned {
    inner: Arc<Inner>,
    id: StoredId,
    key: Key,
    live: Option<Arc<dyn Live>>,
    frames: Option<Arc<Frames>>,
}

impl Pinned {
    /// Takes over a pin of the ledger's. `frames` are those in shared memory where there are any.
    pub(crate) fn new(
        inner: Arc<Inner>,
        id: StoredId,
        key: Key,
        live: Option<Arc<dyn Live>>,
        frames: Option<Arc<Frames>>,
    ) -> Self {
        Pinned {
            inner,
            id,
            key,
            live,
            frames,
        }
    }

    /// The object's id.
    pub fn id(&self) -> StoredId {
        self.id
    }

    /// The live object, if there is one; otherwise make it from [`Pinned::frames`], and hand it
    /// to [`Pinned::attach_live`].
    pub fn live(&self) -> Option<&Arc<dyn Live>> {
        self.live.as_ref()
    }

    /// The frames: those in shared memory before others. A live object without any is serialised
    /// now, on this thread, and the frames are kept with it, unless they are [`Memory::Copy`]: they
    /// count in the managed memory as far as they are not views.
    ///
    /// # Errors
    /// [`StoreError::Serialise`].
    pub fn frames(&mut self) -> Result<Arc<Frames>, StoreError> {
        if let Some(frames) = &self.frames {
            return Ok(Arc::clone(frames));
        }
        let state = self.inner.lock();
        let contents = state.contents.get(&self.key);
        let there =
            contents.and_then(|contents| contents.shared.clone().or(contents.frames.clone()));
        drop(state);
        if let Some(frames) = there {
            self.frames = Some(Arc::clone(&frames));
            return Ok(frames);
        }
        // Every object has a form, and without frames it is the live one.
        let Some(live) = &self.live else {
            return Err(StoreError::Unknown { id: self.id });
        };
        let id = self.id;
        let frames =
            serialise(live.as_ref()).map_err(|source| StoreError::Serialise { id, source })?;
        if frames.memory() == Memory::Copy {
            let frames = Arc::new(frames);
            self.frames = Some(Arc::clone(&frames));
            return Ok(frames);
        }
        Ok(self.attach_frames(frames))
    }

    /// Adds a live object that was made from the frames. If the store has one already, that one
    /// is the answer.
    pub fn attach_live(&mut self, live: Arc<dyn Live>, overlap: Overlap) -> Arc<dyn Live> {
        let cost = Cost::Live(live.nbytes());
        let overlap = overlap == Overlap::Frames;
        let mut state = self.inner.lock();
        let attached = state.ledger.attach(self.key, cost, overlap);
        let mut kept = None;
        if let Some(contents) = state.contents.get_mut(&self.key) {
            if attached {
                contents.live = Some(Arc::clone(&live));
            }
            kept = contents.live.clone();
        }
        self.inner.unlock(state);
        let live = kept.unwrap_or(live);
        self.live = Some(Arc::clone(&live));
        live
    }

    /// Adds frames of the same value: in shared memory, once the object was exported to other
    /// processes, or others. If the store has frames of this kind already, those are the answer.
    pub fn attach_frames(&mut self, frames: Frames) -> Arc<Frames> {
        let cost = cost_of_frames(&frames);
        let frames = Arc::new(frames);
        let mut state = self.inner.lock();
        let attached = state.ledger.attach(self.key, cost, true);
        let mut kept = None;
        if let Some(contents) = state.contents.get_mut(&self.key) {
            let form = match frames.memory() {
                Memory::Shared => &mut contents.shared,
                _ => &mut contents.frames,
            };
            if attached {
                *form = Some(Arc::clone(&frames));
            }
            kept = form.clone();
        }
        self.inner.unlock(state);
        let frames = kept.unwrap_or(frames);
        self.frames = Some(Arc::clone(&frames));
        frames
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let mut state = self.inner.lock();
        let gone = state.ledger.unpin(self.key);
        let left = gone.then(|| state.take(self.key));
        self.inner.unlock(state);
        drop(left);
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned")
            .field("id", &self.id)
            .field("live", &self.live.is_some())
            .field("frames", &self.frames)
            .finish()
    }
}
