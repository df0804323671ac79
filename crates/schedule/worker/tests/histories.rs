//! Random histories: whatever comes in whatever order, each assignment and each order to copy gets
//! one last answer, and nothing stays behind.

mod support;

use std::collections::BTreeMap;

use proptest::prelude::*;
use support::*;
use treadle_types::{ObjectId, Report};
use treadle_worker::{Config, Effect, Event, Outcome, Status};

/// What the outside of a worker knows.
struct Outside {
    worker: Bench,
    /// Assignments and copies that were not answered.
    assigned: BTreeMap<ObjectId, bool>,
    copies: BTreeMap<ObjectId, u32>,
    running: Vec<u32>,
    fetching: Vec<(u32, u32)>,
    next: u32,
}

impl Outside {
    fn new(threads: u32) -> Self {
        Self {
            worker: Bench::with(Config {
                threads,
                fetch_bytes: 25,
                fetches_per_peer: 1,
            }),
            assigned: BTreeMap::new(),
            copies: BTreeMap::new(),
            running: Vec::new(),
            fetching: Vec::new(),
            next: 100,
        }
    }

    fn take_in(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Run(run) => self.running.push(run.object.task.0),
                Effect::Fetch { object, from, .. } => self.fetching.push((object.task.0, from.0)),
                Effect::Report(report) => match report {
                    Report::Finished { object, .. }
                    | Report::Failed { object, .. }
                    | Report::Retracted(object)
                    | Report::Stopped(object)
                    | Report::GivenBack(object)
                    | Report::Immovable { object, .. }
                    | Report::Unavailable { object, .. } => {
                        let is_open = self.assigned.insert(object, false);
                        assert_eq!(is_open, Some(true), "{object:?} is answered twice");
                    }
                    Report::CopyFailed { object, .. } | Report::NotCopyable(object) => {
                        let asked = self.copies.remove(&object);
                        assert!(asked.is_some(), "nobody asked for {object:?}");
                    }
                    Report::Stored { object, .. } => {
                        self.copies.remove(&object);
                    }
                    _ => {}
                },
                _ => {}
            }
        }
    }

    fn step(&mut self, what: u8, which: u8, other: u8) {
        let object_number = 100 + u32::from(which) % (self.next - 99);
        let read = 100 + u32::from(other) % (self.next - 99);
        let (low, high) = (u32::from(which) % 8, u32::from(other) % 8);
        let effects = match what % 16 {
            0..=4 => {
                let number = self.next;
                self.next += 1;
                let inputs = match which % 6 {
                    0 => vec![],
                    1 => vec![at(low, &[1, 2])],
                    2 => vec![at(low, &[1]), at(8 + high, &[2, 3])],
                    3 if read < number => vec![here(read)],
                    4 if read < number => vec![here(read), at(low, &[3])],
                    _ => vec![inline(50, b"x"), at(low, &[1])],
                };
                self.assigned.insert(object(number), true);
                self.worker.assign(task(number, inputs))
            }
            5 => self.worker.retract(object_number),
            6 => self.worker.cancel(object_number),
            7 => self.worker.release(object_number),
            8 => self.worker.release(low),
            9 => {
                // Where it is, it was reported.
                if self.worker.status(low) != Some(Status::Stored) {
                    *self.copies.entry(object(low)).or_default() += 1;
                }
                self.worker.copy(low, &[2])
            }
            10 => self.worker.gone(low),
            11 if which < 128 => self.worker.event(Event::Put {
                object: object(low),
                nbytes: 12,
            }),
            11 if which.is_multiple_of(3) => {
                self.worker.event(Event::Held(which.is_multiple_of(2)))
            }
            11 => self.worker.event(Event::Paused(which.is_multiple_of(2))),
            12 | 13 if !self.running.is_empty() => {
                let index = usize::from(which) % self.running.len();
                let number = self.running.swap_remove(index);
                match other % 6 {
                    0 => self.worker.raised(number),
                    1 => self.worker.ended(number, Outcome::Missing(object(low))),
                    2 => self.worker.ran(number, kept(3)),
                    3 => self.worker.ran(number, small(b"x")),
                    4 => self.worker.ended(number, Outcome::GivenBack),
                    _ => {
                        self.running.push(number);
                        match self.worker.status(number) {
                            Some(Status::Running) => {
                                self.worker.event(Event::Seceded(object(number)))
                            }
                            Some(Status::Seceded) => {
                                self.worker.event(Event::Rejoining(object(number)))
                            }
                            _ => vec![],
                        }
                    }
                }
            }
            _ if !self.fetching.is_empty() => {
                let index = usize::from(which) % self.fetching.len();
                let (number, from) = self.fetching.swap_remove(index);
                match other % 4 {
                    0 => self.worker.not_fetched(number, from),
                    1 => self.worker.immovable(number, from),
                    _ => self.worker.fetched(number, from, 12),
                }
            }
            _ => vec![],
        };
        self.take_in(effects);
    }

    /// Everything that has begun ends, and then there is nothing left.
    fn finish(&mut self) {
        for event in [Event::Paused(false), Event::Held(false)] {
            let effects = self.worker.event(event);
            self.take_in(effects);
        }
        while let Some((number, from)) = self.fetching.pop() {
            let effects = self.worker.fetched(number, from, 12);
            self.take_in(effects);
        }
        while let Some(number) = self.running.pop() {
            let effects = self.worker.ran(number, kept(3));
            self.take_in(effects);
        }
        assert_eq!(self.worker.0.waiting() + self.worker.0.ready(), 0);
        assert!(self.assigned.values().all(|is_open| !is_open));
        assert!(self.copies.is_empty());
        for number in 0..self.next {
            self.worker.release(number);
        }
        assert!(self.worker.0.is_empty());
    }
}

proptest! {
    #[test]
    fn each_assignment_has_one_answer(
        threads in 1u32..3,
        steps in prop::collection::vec(any::<(u8, u8, u8)>(), 0..200),
    ) {
        let mut outside = Outside::new(threads);
        for (what, which, other) in steps {
            outside.step(what, which, other);
        }
        outside.finish();
    }
}
