//! What a node keeps of casts: payloads, and results until they are settled.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use foldhash::fast::RandomState;
use treadle_broadcast::{CastId, Runs};
use treadle_memory::{Handover, MemoryError};
use treadle_net::{Frame, Target};
use treadle_types::{ClientId, WorkerId};

use super::attached::{Attached, Keep, Result_};
use super::payload::{Assembly, Payload, START};

/// What a node keeps.
#[derive(Debug, Default)]
pub(super) struct Store {
    payloads: HashMap<CastId, Held, RandomState>,
    results: HashMap<CastId, HashMap<WorkerId, Result_>, RandomState>,
    /// Bytes of payloads that were made here, or received, but not mapped.
    bytes: u64,
}

#[derive(Debug)]
struct Held {
    content: Content,
    counted: u64,
}

#[derive(Debug)]
enum Content {
    Whole(Bytes),
    /// Another process's memory.
    Mapped(Mapped),
    /// The same, which the engine has and may write to.
    Given(Given),
    Coming(Coming),
}

#[derive(Debug)]
struct Mapped {
    frame: Arc<Frame>,
    /// Its first bytes.
    start: Bytes,
    origin: Handover,
}

#[derive(Debug)]
struct Given {
    start: Bytes,
    origin: Handover,
    /// Mapped again for others.
    again: OnceLock<Option<Bytes>>,
}

impl Mapped {
    fn bytes(&self) -> Bytes {
        struct View(Arc<Frame>);
        impl AsRef<[u8]> for View {
            fn as_ref(&self) -> &[u8] {
                self.0.as_slice()
            }
        }
        Bytes::from_owner(View(Arc::clone(&self.frame)))
    }
}

impl Given {
    fn bytes(&self) -> Option<Bytes> {
        let map = || Some(self.origin.map().ok()?.into_bytes());
        self.again.get_or_init(map).clone()
    }
}

/// A payload that comes in pieces.
#[derive(Debug)]
struct Coming {
    assembly: Arc<Assembly>,
    size: u64,
    /// Bytes that are here.
    have: u64,
    /// Where the pieces end that a connection is receiving into their place, and which one it is.
    claimed: u64,
    claimer: Option<usize>,
    /// A claim was given up: its connection may still write behind what is here.
    is_abandoned: bool,
}

impl Coming {
    /// Gives up what is claimed and is not here.
    fn give_up(&mut self) {
        self.is_abandoned |= self.claimed > self.have;
        self.claimer = None;
        self.claimed = self.have;
    }

    /// Goes on in other memory, with what is here: somebody may write behind that in this one.
    fn renew(&mut self) -> Result<(), MemoryError> {
        let (fresh, have) = (Assembly::new(self.assembly.len())?, self.have as usize);
        // SAFETY: nobody has seen the new memory.
        unsafe { fresh.write(0, &self.assembly.bytes(0, have)) };
        self.assembly = Arc::new(fresh);
        self.give_up();
        self.is_abandoned = false;
        Ok(())
    }
}

impl Store {
    /// Bytes of memory that payloads take of this process.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Keeps a payload that this process made.
    pub(super) fn own(&mut self, cast: CastId, payload: Bytes) {
        let counted = payload.len() as u64;
        self.put(cast, Content::Whole(payload), counted);
    }

    /// Keeps a payload that came at once: small, or mapped, with its first bytes.
    pub(super) fn came(&mut self, cast: CastId, payload: Frame, start: Option<Frame>) {
        let origin = Handover::of_kept(payload.as_ptr(), payload.len());
        let (content, counted) = match (origin, start) {
            // The memory is its sender's.
            (Some(origin), Some(start)) => {
                let mapped = Mapped {
                    frame: Arc::new(payload),
                    start: start.into_bytes(),
                    origin,
                };
                (Content::Mapped(mapped), 0)
            }
            _ => {
                let counted = payload.len() as u64;
                (Content::Whole(payload.into_bytes()), counted)
            }
        };
        self.put(cast, content, counted);
    }

    /// A payload for whoever it was cast to.
    pub(super) fn give(&mut self, cast: CastId) -> Option<Payload> {
        let (bytes, start) = (self.payload(cast)?, self.start(cast)?);
        let content = &mut self.payloads.get_mut(&cast)?.content;
        // The others that may be sent its bytes are those who could not map it, and `bytes`.
        let is_own =
            matches!(content, Content::Mapped(mapped) if Arc::strong_count(&mapped.frame) == 2);
        if is_own && let Content::Mapped(Mapped { start, origin, .. }) = content {
            Handover::let_write(bytes.as_ptr(), bytes.len());
            *content = Content::Given(Given {
                start: start.clone(),
                origin: origin.clone(),
                again: OnceLock::new(),
            });
        }
        Some(Payload {
            bytes,
            start,
            is_own,
        })
    }

    /// Makes memory for a payload.
    pub(super) fn reserve(&mut self, cast: CastId, size: u64) -> Result<(), String> {
        if matches!(
            self.payloads.get(&cast),
            Some(Held {
                content: Content::Coming(_),
                ..
            })
        ) {
            return Ok(());
        }
        let len = usize::try_from(size).map_err(|error| error.to_string())?;
        let assembly = Assembly::new(len).map_err(|error| error.to_string())?;
        let coming = Coming {
            assembly: Arc::new(assembly),
            size,
            have: 0,
            claimed: 0,
            claimer: None,
            is_abandoned: false,
        };
        self.put(cast, Content::Coming(coming), size);
        Ok(())
    }

    fn put(&mut self, cast: CastId, content: Content, counted: u64) {
        let before = self.payloads.insert(cast, Held { content, counted });
        self.bytes += counted;
        self.bytes -= before.map_or(0, |before| before.counted);
    }

    fn coming(&mut self, cast: CastId) -> Option<&mut Coming> {
        match &mut self.payloads.get_mut(&cast)?.content {
            Content::Coming(coming) => Some(coming),
            _ => None,
        }
    }

    /// Where a piece belongs that a connection is about to receive; `None`: elsewhere, first.
    pub(super) fn claim(
        &mut self,
        cast: CastId,
        offset: u64,
        length: u32,
        connection: usize,
    ) -> Option<Target> {
        let coming = self.coming(cast)?;
        let end = offset.checked_add(u64::from(length))?;
        let is_its = coming.claimer.is_none_or(|claimer| claimer == connection);
        if !is_its
            || coming.is_abandoned
            || offset != coming.claimed.max(coming.have)
            || end > coming.size
        {
            return None;
        }
        coming.claimer = Some(connection);
        coming.claimed = end;
        let at = coming.assembly.at(offset as usize);
        let owner = Box::new(Arc::clone(&coming.assembly));
        // SAFETY: the owner keeps the memory. Nobody reads it before it is whole, and nobody else
        // writes there: this connection alone has claimed it.
        Some(unsafe { Target::new(at, length as usize, owner) })
    }

    /// What a connection has claimed and was not taken is free again.
    pub(super) fn unclaim(&mut self, connection: usize) {
        for held in self.payloads.values_mut() {
            if let Content::Coming(coming) = &mut held.content
                && coming.claimer == Some(connection)
            {
                coming.give_up();
            }
        }
    }

    /// Takes a piece with the next bytes, and perhaps some that are here; it may be in its place
    /// already, if its connection has claimed that.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(super) fn add(
        &mut self,
        cast: CastId,
        offset: u64,
        piece: &Frame,
        connection: usize,
    ) -> Result<(), MemoryError> {
        let Some(coming) = self.coming(cast) else {
            return Ok(());
        };
        let end = offset.saturating_add(piece.len() as u64);
        if offset > coming.have || end <= coming.have || end > coming.size {
            return Ok(());
        }
        if piece.as_ptr() != coming.assembly.at(offset as usize) {
            let is_others = coming.claimer.is_some_and(|claimer| claimer != connection);
            if is_others || coming.is_abandoned {
                coming.renew()?;
            }
            let fresh = &piece.as_slice()[(coming.have - offset) as usize..];
            // SAFETY: what is not here yet was not handed out.
            unsafe { coming.assembly.write(coming.have as usize, fresh) };
        }
        coming.have = end;
        if coming.have >= coming.claimed {
            coming.claimed = coming.have;
            coming.claimer = None;
        }
        if coming.have == coming.size {
            coming.assembly.finish();
            let whole = coming.assembly.bytes(0, coming.size as usize);
            if let Some(held) = self.payloads.get_mut(&cast) {
                held.content = Content::Whole(whole);
            }
        }
        Ok(())
    }

    /// A piece came that is not wanted: what its connection claimed after it is not either.
    pub(super) fn skip(&mut self, cast: CastId, connection: usize) {
        if let Some(coming) = self.coming(cast)
            && coming.claimer == Some(connection)
        {
            coming.give_up();
        }
    }

    /// Keeps results that came.
    pub(super) fn keep_results(&mut self, cast: CastId, engines: &Runs, from: &mut Attached) {
        for engine in engines.iter() {
            let engine = WorkerId(engine as u32);
            let frames = from.take_result(cast.number, engine);
            if !frames.is_empty() {
                let result = frames.into_iter().map(Frame::into_bytes).collect();
                self.results.entry(cast).or_default().insert(engine, result);
            }
        }
    }

    /// Nobody needs anything of this cast. What it returns is to be dropped outside of locks.
    pub(super) fn drop_cast(&mut self, cast: CastId) -> impl Sized + use<> {
        let payload = self.payloads.remove(&cast);
        self.bytes -= payload.as_ref().map_or(0, |held| held.counted);
        (payload, self.results.remove(&cast))
    }

    /// The same of all casts of a session.
    pub(super) fn drop_session(&mut self, session: ClientId) -> impl Sized + use<> {
        let of_session = |cast: &CastId| cast.session == session;
        let payloads: Vec<Held> = self
            .payloads
            .extract_if(|cast, _| of_session(cast))
            .map(|(_, held)| held)
            .collect();
        self.bytes -= payloads.iter().map(|held| held.counted).sum::<u64>();
        let results = self.results.extract_if(|cast, _| of_session(cast));
        (payloads, results.collect::<Vec<_>>())
    }
}

impl Keep for Store {
    fn payload(&self, cast: CastId) -> Option<Bytes> {
        match &self.payloads.get(&cast)?.content {
            Content::Whole(bytes) => Some(bytes.clone()),
            Content::Mapped(mapped) => Some(mapped.bytes()),
            Content::Given(given) => given.bytes(),
            Content::Coming(_) => None,
        }
    }

    fn start(&self, cast: CastId) -> Option<Bytes> {
        match &self.payloads.get(&cast)?.content {
            Content::Whole(bytes) => Some(bytes.slice(..bytes.len().min(START))),
            Content::Mapped(Mapped { start, .. }) | Content::Given(Given { start, .. }) => {
                Some(start.clone())
            }
            Content::Coming(_) => None,
        }
    }

    fn piece(&self, cast: CastId, offset: u64, length: u32) -> Option<Bytes> {
        let end = offset.checked_add(u64::from(length))?;
        if let Content::Coming(coming) = &self.payloads.get(&cast)?.content {
            let is_here = end <= coming.have;
            return is_here.then(|| coming.assembly.bytes(offset as usize, length as usize));
        }
        let whole = self.payload(cast)?;
        (end <= whole.len() as u64).then(|| whole.slice(offset as usize..end as usize))
    }

    fn result(&self, cast: CastId, engine: WorkerId) -> Option<&Result_> {
        self.results.get(&cast)?.get(&engine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAST: CastId = CastId {
        session: ClientId(1),
        number: 2,
    };
    const LENGTH: u32 = 8;

    fn store() -> Store {
        let mut store = Store::default();
        store.reserve(CAST, 3 * u64::from(LENGTH)).unwrap();
        store
    }

    /// The memory that a connection receives a piece into.
    fn claimed(store: &mut Store, number: u64, connection: usize) -> Option<*mut u8> {
        let offset = number * u64::from(LENGTH);
        drop(store.claim(CAST, offset, LENGTH, connection)?);
        let coming = store.coming(CAST).unwrap();
        Some(coming.assembly.at(offset as usize))
    }

    fn add(store: &mut Store, number: u64, connection: usize) {
        let piece = Frame::from(Bytes::from(vec![number as u8; LENGTH as usize]));
        let offset = number * u64::from(LENGTH);
        store.add(CAST, offset, &piece, connection).unwrap();
    }

    /// Whether all pieces are there, and right.
    fn is_whole(store: &Store) -> bool {
        let whole = [0, 1, 2].map(|byte| [byte; LENGTH as usize]).concat();
        store.payload(CAST).is_some_and(|bytes| bytes == whole)
    }

    #[test]
    fn who_sends_a_piece_that_another_one_sends_too_does_not_share_its_place() {
        let mut store = store();
        add(&mut store, 0, 1);
        let here = store.piece(CAST, 0, LENGTH).unwrap();
        let held = Arc::clone(&store.coming(CAST).unwrap().assembly);
        let places = [1, 2].map(|number| claimed(&mut store, number, 1).unwrap());
        assert!(claimed(&mut store, 1, 2).is_none());
        add(&mut store, 1, 2);
        let again = claimed(&mut store, 2, 2).unwrap();
        assert_ne!(again, places[1]);
        // What the first one sends is damaged, and late.
        for place in places {
            // SAFETY: `held` keeps the memory.
            unsafe { place.write_bytes(9, LENGTH as usize) };
        }
        add(&mut store, 2, 2);
        assert!(is_whole(&store));
        assert_eq!(here, [0; LENGTH as usize][..]);
        drop(held);
    }

    #[test]
    fn what_came_in_bytes_is_counted_until_it_goes() {
        let mut store = Store::default();
        let payload = Frame::from(Bytes::from(vec![1; 3 * LENGTH as usize]));
        let start = Frame::from(Bytes::from(vec![1; 8]));
        store.came(CAST, payload, Some(start));
        assert_eq!(store.bytes(), 3 * u64::from(LENGTH));
        drop(store.drop_cast(CAST));
        assert_eq!(store.bytes(), 0);
    }

    #[test]
    fn who_gave_up_its_place_may_still_write_there() {
        for give_up in [
            (|store: &mut Store| store.unclaim(1)) as fn(&mut Store),
            |store| store.skip(CAST, 1),
        ] {
            let mut store = store();
            let held = Arc::clone(&store.coming(CAST).unwrap().assembly);
            let place = claimed(&mut store, 0, 1).unwrap();
            give_up(&mut store);
            assert!(claimed(&mut store, 0, 2).is_none());
            add(&mut store, 0, 2);
            assert!(claimed(&mut store, 1, 2).is_some(), "in other memory");
            // SAFETY: `held` keeps the memory.
            unsafe { place.write_bytes(9, LENGTH as usize) };
            add(&mut store, 1, 2);
            add(&mut store, 2, 2);
            assert!(is_whole(&store));
            drop(held);
        }
    }
}
