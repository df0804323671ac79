//! The ledger against a naive model: random operations and failures, every sum and every choice
//! compared after each step.

use proptest::prelude::*;
use treadle_store::StoredId;
use treadle_store::ledger::{Access, Cost, Full, Key, Ledger, Put, Unknown, Victim, Written};

const TARGET: u64 = 60;
const LIMIT: u64 = 100;

#[derive(Clone, Copy, Debug)]
enum Op {
    Put(u64, Cost),
    Retain(u64),
    Release(u64),
    Remove(u64),
    Pin(u64),
    /// The index is among the pins that are held.
    Unpin(usize),
    Access(usize),
    Attach(usize, Cost, bool),
    ReadDone(usize, bool),
    Unshare(u64),
    Victim(bool),
    /// `None`: the disk failed; `Some(0)`: it cannot be serialised; otherwise the length.
    WriteDone(Option<u64>),
    Wait(u64),
    EndWait(usize),
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Io {
    None,
    Reading,
    Writing,
}

/// A content; `value` of each form is its size.
#[derive(Clone, Debug)]
struct Content {
    key: Key,
    id: StoredId,
    references: u64,
    kept: bool,
    pins: u64,
    live: Option<u64>,
    frames: Option<u64>,
    /// Bytes of the frames that are not the live object's.
    frames_own: u64,
    shared: Option<u64>,
    live_views_shared: bool,
    file: Option<u64>,
    io: Io,
    named: bool,
    stuck: bool,
}

impl Content {
    fn used(&self) -> bool {
        self.pins > 0 || self.io != Io::None
    }

    fn managed(&self) -> u64 {
        let frames = self.frames.unwrap_or(0);
        let reading = if self.io == Io::Reading {
            self.file.unwrap()
        } else {
            0
        };
        let Some(live) = self.live else {
            return frames + reading;
        };
        let own = if self.frames.is_some() {
            self.frames_own
        } else {
            0
        };
        if self.live_views_shared {
            live.saturating_sub(self.shared.unwrap()) + own + reading
        } else {
            live + own + reading
        }
    }
}

/// The contents from the least to the most recently used.
#[derive(Default)]
struct Model {
    contents: Vec<Content>,
    next: u64,
    pins: Vec<(Key, bool)>,
    waiting: Vec<u64>,
}

impl Model {
    fn managed(&self) -> u64 {
        self.contents.iter().map(Content::managed).sum()
    }

    fn named(&mut self, id: u64) -> Option<&mut Content> {
        let id = StoredId(id);
        self.contents.iter_mut().find(|c| c.named && c.id == id)
    }

    fn content(&mut self, key: Key) -> &mut Content {
        self.contents.iter_mut().find(|c| c.key == key).unwrap()
    }

    fn touch(&mut self, key: Key) {
        let at = self.contents.iter().position(|c| c.key == key).unwrap();
        let content = self.contents.remove(at);
        self.contents.push(content);
    }

    /// Removes a content that nobody names or uses: whether it did.
    fn collect(&mut self, key: Key) -> bool {
        let before = self.contents.len();
        self.contents
            .retain(|c| c.key != key || c.named || c.used());
        self.contents.len() < before
    }

    fn goal(&self) -> u64 {
        let largest = self.waiting.iter().copied().max().unwrap_or(0);
        TARGET.min(LIMIT.saturating_sub(largest))
    }

    fn put(&mut self, id: u64, cost: Cost) -> Result<Put, Full> {
        let needed = cost.managed();
        if needed > LIMIT {
            return Err(Full { never: true });
        }
        let replaced = self.named(id).filter(|c| !c.used()).map(|c| c.managed());
        if needed > 0 && self.managed() - replaced.unwrap_or(0) + needed > LIMIT {
            return Err(Full { never: false });
        }
        let mut references = 1;
        let mut gone = None;
        if let Some(old) = self.named(id) {
            old.named = false;
            references = old.references + u64::from(!old.kept);
            let old = old.key;
            gone = self.collect(old).then_some(old);
        }
        self.next += 1;
        let key = Key(self.next);
        let mut content = Content {
            key,
            id: StoredId(id),
            references,
            kept: true,
            pins: 0,
            live: None,
            frames: None,
            frames_own: 0,
            shared: None,
            live_views_shared: false,
            file: None,
            io: Io::None,
            named: true,
            stuck: false,
        };
        match cost {
            Cost::Live(n) => content.live = Some(n),
            Cost::Frames { bytes, own } => {
                content.frames = Some(bytes);
                content.frames_own = own;
            }
            Cost::Shared(n) => content.shared = Some(n),
        }
        self.contents.push(content);
        Ok(Put { key, gone })
    }

    fn release(&mut self, id: u64) -> Result<Option<Key>, Unknown> {
        let content = self.named(id).ok_or(Unknown)?;
        if content.references == u64::from(content.kept) {
            return Err(Unknown);
        }
        content.references -= 1;
        content.named = content.references > 0;
        let key = content.key;
        Ok(self.collect(key).then_some(key))
    }

    fn remove(&mut self, id: u64) -> Result<Option<Key>, Unknown> {
        let content = self
            .named(id)
            .filter(|content| content.kept)
            .ok_or(Unknown)?;
        content.kept = false;
        self.release(id)
    }

    fn access(&mut self, key: Key) -> Access {
        let content = self.content(key);
        if content.live.is_some() || content.frames.is_some() || content.shared.is_some() {
            Access::Ready
        } else if content.io == Io::Reading {
            Access::Wait
        } else {
            content.io = Io::Reading;
            Access::Read {
                bytes: content.file.unwrap(),
            }
        }
    }

    fn attach(&mut self, key: Key, cost: Cost, overlap: bool) -> bool {
        let content = self.content(key);
        match cost {
            Cost::Live(n) => {
                if content.live.is_some() {
                    return false;
                }
                content.live = Some(n);
                content.live_views_shared = overlap && content.shared.is_some();
                if overlap && let Some(frames) = content.frames {
                    content.frames_own = frames.saturating_sub(n);
                }
            }
            Cost::Frames { bytes, own } => {
                if content.frames.is_some() {
                    return false;
                }
                content.frames = Some(bytes);
                content.frames_own = own;
                content.stuck = false;
            }
            Cost::Shared(n) => {
                if content.shared.is_some() {
                    return false;
                }
                content.shared = Some(n);
                content.live_views_shared = overlap && content.live.is_some();
            }
        }
        true
    }

    fn unshare(&mut self, id: u64) -> Result<Key, Unknown> {
        let content = self.named(id).ok_or(Unknown)?;
        let shared = content.shared.take().ok_or(Unknown)?;
        content.live_views_shared = false;
        if content.live.is_none() && content.frames.is_none() && content.file.is_none() {
            content.frames = Some(shared);
            content.frames_own = shared;
        }
        Ok(content.key)
    }

    fn victim(&mut self, write: bool) -> Option<Victim> {
        if self.managed() <= self.goal() {
            return None;
        }
        let backed = |c: &Content| c.file.is_some() || c.shared.is_some();
        let victim = self
            .contents
            .iter_mut()
            .find(|c| !c.used() && c.managed() > 0 && (backed(c) || (write && !c.stuck)))?;
        if backed(victim) {
            unload(victim);
            Some(Victim::Unloaded(victim.key))
        } else {
            victim.io = Io::Writing;
            Some(Victim::Write(victim.key))
        }
    }

    fn written(&mut self, key: Key, bytes: u64) -> Written {
        let above = self.managed() > self.goal();
        let content = self.content(key);
        content.io = Io::None;
        content.file = Some(bytes);
        let unload_it = above && !content.used();
        if self.collect(key) {
            Written::Gone
        } else if unload_it {
            unload(self.content(key));
            Written::Unloaded
        } else {
            Written::Kept
        }
    }

    fn write_failed(&mut self, key: Key, stuck: bool) -> bool {
        let content = self.content(key);
        content.io = Io::None;
        content.stuck = stuck;
        self.collect(key)
    }
}

fn unload(content: &mut Content) {
    content.live = None;
    content.frames = None;
    content.live_views_shared = false;
}

fn compare(ledger: &Ledger, model: &Model) -> Result<(), TestCaseError> {
    let checked = ledger.check();
    prop_assert!(checked.is_ok(), "{checked:?}");
    let totals = ledger.totals();
    let sum = |of: &dyn Fn(&Content) -> Option<u64>| -> (u64, u64) {
        let values: Vec<u64> = model.contents.iter().filter_map(of).collect();
        (values.len() as u64, values.iter().sum())
    };
    let pair = |tally: treadle_store::Tally| (tally.count, tally.nbytes);
    prop_assert_eq!(totals.managed, model.managed());
    prop_assert_eq!(totals.contents.count, model.contents.len() as u64);
    prop_assert_eq!(pair(totals.live), sum(&|c| c.live));
    prop_assert_eq!(pair(totals.frames), sum(&|c| c.frames));
    prop_assert_eq!(pair(totals.shared), sum(&|c| c.shared));
    prop_assert_eq!(pair(totals.files), sum(&|c| c.file));
    let spilled = |c: &Content| {
        let memory = c.live.is_some() || c.frames.is_some() || c.shared.is_some();
        c.file.filter(|_| !memory && c.io == Io::None)
    };
    prop_assert_eq!(pair(totals.spilled), sum(&spilled));
    let pinned = |c: &Content| (c.pins > 0).then(|| c.managed());
    prop_assert_eq!(pair(totals.pinned), sum(&pinned));
    let stuck = |c: &Content| c.stuck.then(|| c.managed());
    prop_assert_eq!(pair(totals.stuck), sum(&stuck));
    prop_assert_eq!(ledger.waiting(), model.waiting.len() as u64);
    prop_assert_eq!(ledger.above_goal(), model.managed() > model.goal());
    for content in &model.contents {
        let booked = ledger.content(content.key).unwrap();
        prop_assert_eq!(booked.pins, content.pins);
        prop_assert_eq!(booked.live, content.live.is_some());
        prop_assert_eq!(booked.frames, content.frames.is_some());
        prop_assert_eq!(booked.shared, content.shared.is_some());
        prop_assert_eq!(booked.file, content.file.is_some());
        if content.named {
            prop_assert_eq!(ledger.key(content.id), Some(content.key));
            prop_assert_eq!(booked.references, content.references);
        }
    }
    Ok(())
}

fn step(ledger: &mut Ledger, model: &mut Model, op: Op) -> Result<(), TestCaseError> {
    match op {
        Op::Put(id, cost) => {
            let put = ledger.put(StoredId(id), cost);
            prop_assert_eq!(put, model.put(id, cost));
            if put.is_ok() && cost.managed() > 0 {
                prop_assert!(ledger.totals().managed <= LIMIT);
            }
        }
        Op::Retain(id) => {
            let expected = model.named(id).map(|c| c.references += 1).ok_or(Unknown);
            prop_assert_eq!(ledger.retain(StoredId(id)), expected);
        }
        Op::Release(id) => {
            prop_assert_eq!(ledger.release(StoredId(id)), model.release(id));
        }
        Op::Remove(id) => {
            prop_assert_eq!(ledger.remove(StoredId(id)), model.remove(id));
        }
        Op::Pin(id) => {
            let expected = model.named(id).map(|c| {
                c.pins += 1;
                c.key
            });
            prop_assert_eq!(ledger.pin(StoredId(id)).ok(), expected);
            if let Some(key) = expected {
                model.touch(key);
                model.pins.push((key, false));
            }
        }
        Op::Unpin(index) => {
            // A reader lets go after its read.
            let free: Vec<usize> = (0..model.pins.len())
                .filter(|&i| !model.pins[i].1)
                .collect();
            if free.is_empty() {
                return Ok(());
            }
            let (key, _) = model.pins.remove(free[index % free.len()]);
            model.content(key).pins -= 1;
            model.touch(key);
            prop_assert_eq!(ledger.unpin(key), model.collect(key));
        }
        Op::Access(index) => {
            let count = model.pins.len();
            if count > 0 && !model.pins[index % count].1 {
                let key = model.pins[index % count].0;
                let access = ledger.access(key);
                prop_assert_eq!(access, model.access(key));
                model.pins[index % count].1 = matches!(access, Access::Read { .. });
            }
        }
        Op::Attach(index, cost, overlap) => {
            let count = model.pins.len();
            if count > 0 {
                let key = model.pins[index % count].0;
                let attached = ledger.attach(key, cost, overlap);
                prop_assert_eq!(attached, model.attach(key, cost, overlap));
            }
        }
        Op::ReadDone(index, read) => {
            let reads: Vec<usize> = (0..model.pins.len()).filter(|&i| model.pins[i].1).collect();
            if reads.is_empty() {
                return Ok(());
            }
            let (key, reading) = &mut model.pins[reads[index % reads.len()]];
            *reading = false;
            let key = *key;
            ledger.read_done(key, read);
            let content = model.content(key);
            content.io = Io::None;
            if read && content.frames.is_none() {
                content.frames = content.file;
                content.frames_own = content.file.unwrap();
            }
        }
        Op::Unshare(id) => {
            prop_assert_eq!(ledger.unshare(StoredId(id)), model.unshare(id));
        }
        Op::Victim(write) => {
            // The thread writes one file at a time.
            if model.contents.iter().any(|c| c.io == Io::Writing) {
                return Ok(());
            }
            let any = ledger.has_victim(write);
            let victim = ledger.next_victim(write);
            prop_assert_eq!(victim, model.victim(write));
            prop_assert_eq!(any, victim.is_some());
        }
        Op::WriteDone(outcome) => {
            let writing = model.contents.iter().find(|c| c.io == Io::Writing);
            let Some(key) = writing.map(|c| c.key) else {
                return Ok(());
            };
            match outcome {
                Some(bytes) if bytes > 0 => {
                    prop_assert_eq!(ledger.written(key, bytes), model.written(key, bytes));
                }
                _ => {
                    let stuck = outcome.is_some();
                    let gone = ledger.write_failed(key, stuck);
                    prop_assert_eq!(gone, model.write_failed(key, stuck));
                }
            }
        }
        Op::Wait(needed) => {
            ledger.wait(needed);
            model.waiting.push(needed);
        }
        Op::EndWait(index) => {
            if !model.waiting.is_empty() {
                let needed = model.waiting.remove(index % model.waiting.len());
                ledger.end_wait(needed);
            }
        }
    }
    compare(ledger, model)
}

fn cost() -> impl Strategy<Value = Cost> {
    prop_oneof![
        4 => (0..50u64).prop_map(Cost::Live),
        2 => (0..50u64, 0..=10u64).prop_map(|(bytes, part)| Cost::Frames {
            bytes,
            own: bytes * part / 10,
        }),
        1 => (0..50u64).prop_map(Cost::Shared),
        1 => (90..120u64).prop_map(Cost::Live),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let id = 0..6u64;
    let index = 0..8usize;
    prop_oneof![
        6 => (id.clone(), cost()).prop_map(|(id, cost)| Op::Put(id, cost)),
        1 => id.clone().prop_map(Op::Retain),
        2 => id.clone().prop_map(Op::Release),
        2 => id.clone().prop_map(Op::Remove),
        4 => id.clone().prop_map(Op::Pin),
        4 => index.clone().prop_map(Op::Unpin),
        5 => index.clone().prop_map(Op::Access),
        3 => (index.clone(), cost(), any::<bool>()).prop_map(|(i, c, o)| Op::Attach(i, c, o)),
        3 => (index.clone(), any::<bool>()).prop_map(|(i, read)| Op::ReadDone(i, read)),
        1 => id.prop_map(Op::Unshare),
        6 => any::<bool>().prop_map(Op::Victim),
        5 => prop_oneof![
            3 => (1..60u64).prop_map(Some),
            1 => Just(None),
            2 => Just(Some(0)),
        ]
        .prop_map(Op::WriteDone),
        1 => (0..120u64).prop_map(Op::Wait),
        1 => index.prop_map(Op::EndWait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn the_ledger_is_the_model(ops in prop::collection::vec(op(), 1..120)) {
        let mut ledger = Ledger::new(TARGET, LIMIT);
        let mut model = Model::default();
        for op in ops {
            step(&mut ledger, &mut model, op)?;
        }
    }
}

#[test]
fn frames_that_view_the_live_object_cost_nothing() {
    let mut ledger = Ledger::new(TARGET, LIMIT);
    ledger.put(StoredId(1), Cost::Live(40)).unwrap();
    let key = ledger.pin(StoredId(1)).unwrap();
    let views = Cost::Frames { bytes: 40, own: 0 };
    assert!(ledger.attach(key, views, true));
    assert_eq!(ledger.totals().managed, 40);
    assert_eq!(ledger.totals().frames.nbytes, 40);
    ledger.check().unwrap();
}

#[test]
fn a_live_object_that_views_its_frames_is_counted_once() {
    let mut ledger = Ledger::new(TARGET, LIMIT);
    let frames = Cost::Frames { bytes: 42, own: 42 };
    ledger.put(StoredId(1), frames).unwrap();
    let key = ledger.pin(StoredId(1)).unwrap();
    assert!(ledger.attach(key, Cost::Live(40), true));
    assert_eq!(ledger.totals().managed, 42);

    ledger.put(StoredId(2), Cost::Shared(30)).unwrap();
    let key = ledger.pin(StoredId(2)).unwrap();
    assert!(ledger.attach(key, Cost::Live(30), true));
    assert_eq!(ledger.totals().managed, 42);
    ledger.unshare(StoredId(2)).unwrap();
    assert_eq!(ledger.totals().managed, 72);
    ledger.check().unwrap();
}

#[test]
fn the_largest_waiting_object_sets_how_much_goes() {
    let mut ledger = Ledger::new(TARGET, LIMIT);
    for id in 0..6 {
        ledger.put(StoredId(id), Cost::Live(10)).unwrap();
    }
    assert_eq!(ledger.next_victim(true), None, "at the target");
    ledger.wait(75);
    for coldest in 1..=4 {
        assert_eq!(ledger.next_victim(true), Some(Victim::Write(Key(coldest))));
        assert_eq!(ledger.written(Key(coldest), 10), Written::Unloaded);
    }
    assert_eq!(ledger.totals().managed, 20);
    assert_eq!(ledger.next_victim(true), None);
    assert!(ledger.put(StoredId(6), Cost::Live(75)).is_ok());
    ledger.check().unwrap();
}
