//! A shuffle whose rows are the host's: it brings a [`Source`] of them, and gets back the pieces that came.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;
use treadle_net::Wait;
use treadle_shuffle::{Commit, Generation, MapRange, ShuffleId, Tally, Transfer};
use treadle_shuffle_node::{Failure, MapRows, ReadRows};
use treadle_shuffle_service::{About, Member};

use crate::attempts::{attempts, stopped};
use crate::source::Source;
use crate::verdict::{self, Lost, Readable};
use crate::{At, Error, Part, Receipt};

/// How long the master is asked why nothing was taken in time.
const CAUSE: Duration = Duration::from_millis(100);

/// What is known of a map that is pushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Attempt {
    /// It may have run before: only what no server has is pushed.
    pub again: bool,
    /// Its rows count even if others of the map were committed. Then all maps of the shuffle run again.
    pub replaces: bool,
}

impl Attempt {
    /// One of a map that may have run before.
    #[must_use]
    pub fn again(self, again: bool) -> Self {
        Self { again, ..self }
    }

    /// One whose rows count, whatever was committed.
    #[must_use]
    pub fn replaces(self, replaces: bool) -> Self {
        Self { replaces, ..self }
    }
}

/// What is read of a partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The generation that was committed.
    pub generation: Generation,
    /// The partition.
    pub partition: u32,
    /// The maps whose rows are wanted; `None`: all.
    pub maps: Option<Range<u32>>,
    /// Bytes of a row; 0: they differ.
    pub width: usize,
    /// Whether a generation that was never committed is an error at once. Otherwise the caller waits for its commit.
    pub is_checked: bool,
}

/// A shuffle whose rows are the host's. Its calls try again while servers are lost and others are there.
///
/// [`Shuffle`](crate::Shuffle) is this with records of bytes.
pub struct RawShuffle {
    member: Arc<Member>,
    number: u64,
    name: Arc<str>,
    maps: u32,
    /// The generation that was committed last, as far as it is known here. 0: none.
    committed: AtomicU32,
}

/// Why an attempt did not succeed, though a later one may.
enum Tried {
    Again(String),
    Superseded(String),
}

impl RawShuffle {
    /// The shuffle with this number, of which the master is that of `member`.
    pub fn new(member: Arc<Member>, number: u64, name: &str, maps: u32) -> Self {
        Self {
            member,
            number,
            name: name.into(),
            maps,
            committed: AtomicU32::new(0),
        }
    }

    /// Its number in the service.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many maps it has.
    pub fn maps(&self) -> u32 {
        self.maps
    }

    pub(crate) fn at(&self, part: Part) -> At {
        At::Shuffle {
            number: self.number,
            name: Arc::clone(&self.name),
            part,
        }
    }

    /// This generation was committed: it is read without asking the master.
    pub fn committed(&self, generation: Generation) {
        self.committed.fetch_max(generation.0, Ordering::Relaxed);
    }

    /// Pushes the rows of a map, and waits until all copies have them. What is lost meanwhile is pushed again.
    ///
    /// # Errors
    /// [`Error::LateAttempt`], [`Error::NoRoom`], [`Error::Source`]; [`Error::Refused`] after the end of the shuffle;
    /// [`Error::Gone`]; [`Error::TimedOut`].
    pub fn push(
        &self,
        map: u32,
        attempt: Attempt,
        source: &dyn Source,
        wait: &mut Wait<'_>,
    ) -> Result<Receipt, Error> {
        let mut pushed = self.push_all(&[(map, source)], attempt, wait);
        pushed.pop().unwrap_or_else(|| {
            let at = self.at(Part::Map(map));
            Err(Error::Interrupted { at })
        })
    }

    /// Pushes the rows of several maps together, as [`RawShuffle::push`] pushes those of one. What came of each, in their
    /// order: one that fails leaves the others alone. Small maps take less time so. The rows of all of them are in memory
    /// until all copies have them.
    pub fn push_all(
        &self,
        maps: &[(u32, &dyn Source)],
        attempt: Attempt,
        wait: &mut Wait<'_>,
    ) -> Vec<Result<Receipt, Error>> {
        let pushed = maps.iter().map(|&(map, _)| self.refused(map).map(Err));
        let mut pushed: Vec<Option<Result<Receipt, Error>>> = pushed.collect();
        let part = match maps {
            [(map, _)] => Part::Map(*map),
            _ => Part::Whole,
        };
        let ended = attempts(wait, &self.at(part), |is_again, wait| {
            let attempt = attempt.again(attempt.again || is_again);
            self.try_to_push(maps, &mut pushed, attempt, wait);
            Ok(pushed.iter().all(Option::is_some).then_some(()))
        });
        let ended = ended.err();
        let mut full = None;
        let pushed = maps.iter().zip(pushed).map(|(&(map, _), pushed)| {
            let at = self.at(Part::Map(map));
            let stopped = || ended.as_ref().map(|ended| ended.of(at.clone()));
            let pushed = pushed.or_else(|| stopped().map(Err));
            match pushed.unwrap_or_else(|| Err(Error::Interrupted { at: at.clone() })) {
                Err(late @ Error::TimedOut { .. }) => {
                    let full: &Option<Error> = full.get_or_insert_with(|| self.full(at.clone()));
                    Err(full.as_ref().map_or(late, |full| full.of(at)))
                }
                pushed => pushed,
            }
        });
        pushed.collect()
    }

    /// Why no map of this number can be pushed, if so.
    fn refused(&self, map: u32) -> Option<Error> {
        (map >= self.maps).then(|| Error::Invalid {
            at: self.at(Part::Map(map)),
            reason: format!("there are {} maps, from 0 on", self.maps),
        })
    }

    /// Pushes the maps of which nothing has come yet, once.
    fn try_to_push(
        &self,
        maps: &[(u32, &dyn Source)],
        pushed: &mut [Option<Result<Receipt, Error>>],
        attempt: Attempt,
        wait: &mut Wait<'_>,
    ) {
        let plane = self.member.plane();
        let open = (0..maps.len()).filter(|&at| pushed[at].is_none());
        let open: Vec<usize> = open.collect();
        let rows = open.iter().map(|&at| {
            let (map, source) = maps[at];
            MapRows {
                transfer: Transfer {
                    shuffle: ShuffleId(self.number),
                    map,
                    attempt: self.member.attempt(),
                },
                again: attempt.again,
                replaces: attempt.replaces,
                source,
            }
        });
        let rows: Vec<MapRows<'_>> = rows.collect();
        let outcomes = plane.transfer_all(&rows, &mut || wait.check().is_err());
        let ended = rows.iter().zip(&outcomes);
        let ended = ended.map(|(rows, outcome)| (rows.transfer.attempt, outcome.is_ok()));
        plane.finished_all(&ended.collect::<Vec<_>>());
        for (&place, outcome) in open.iter().zip(outcomes) {
            let at = self.at(Part::Map(maps[place].0));
            pushed[place] = match outcome {
                Ok(receipt) => Some(Ok(Receipt::new(receipt))),
                // It is an error if the shuffle has ended.
                Err(failure) => {
                    let tried = self.tried(failure, &at, wait);
                    tried.and_then(|_| self.about(&at, wait)).err().map(Err)
                }
            };
        }
    }

    /// What is to be said instead of that the time has passed, if no server has room.
    fn full(&self, at: At) -> Option<Error> {
        let mut wait = Wait::within(CAUSE);
        let state = self.member.state(&mut || wait.check().is_err()).ok()?;
        let state: Value = serde_json::from_str(&state).ok()?;
        let servers = state["servers"].as_array()?;
        if servers.is_empty() || !servers.iter().all(|server| server["weight"] == 0) {
            return None;
        }
        let names = servers.iter().filter_map(|server| server["name"].as_str());
        let mut names: Vec<&str> = names.collect();
        names.sort_unstable();
        let reason = format!(
            "no shuffle server has room ({}): add servers, or make room on their disks",
            names.join(", ")
        );
        Some(Error::NoRoom { at, reason })
    }

    /// Has the servers compare their rows with the receipts, one for each map, and returns the generation. `keeps`:
    /// maps whose rows are lost meanwhile run again when the caller says so; otherwise when somebody reads them.
    ///
    /// # Errors
    /// [`Error::Receipts`], [`Error::RowsLost`], [`Error::LateAttempt`], [`Error::DamagedRows`]; [`Error::Refused`] after
    /// the end of the shuffle; [`Error::Gone`]; [`Error::TimedOut`].
    pub fn commit(
        &self,
        receipts: &[Receipt],
        keeps: bool,
        wait: &mut Wait<'_>,
    ) -> Result<Generation, Error> {
        let at = self.at(Part::Commit);
        let receipts = receipts.iter().map(Receipt::inner);
        let commit = Commit::new(ShuffleId(self.number), self.maps, receipts);
        let mut commit = commit.map_err(|source| Error::Receipts {
            at: at.clone(),
            source,
        })?;
        commit.keeps = keeps;
        let plane = self.member.plane();
        let generation = attempts(wait, &at, |_, wait| {
            match plane.commit(commit.clone(), &mut || wait.check().is_err()) {
                Ok(generation) => Ok(Some(generation)),
                Err(failure) => match self.tried(failure, &at, wait)? {
                    Tried::Again(reason) | Tried::Superseded(reason) => {
                        let about = self.about(&at, wait)?;
                        self.check_lost(&about, reason, None, &at)?;
                        Ok(None)
                    }
                },
            }
        })?;
        self.committed(generation);
        Ok(generation)
    }

    /// Reads a partition: pieces in the order of their maps. All rows of the receipts that were committed come, each one
    /// once and as it was written, or an error.
    ///
    /// # Errors
    /// [`Error::NotCommitted`], [`Error::Superseded`], [`Error::RowsLost`], [`Error::DamagedRows`]; [`Error::Refused`]
    /// after the end of the shuffle; [`Error::Gone`]; [`Error::TimedOut`].
    pub fn read(&self, asked: &Asked, wait: &mut Wait<'_>) -> Result<ReadRows, Error> {
        let end = asked.partition.saturating_add(1);
        let mut rows = self.read_all(asked, end, wait)?;
        let at = self.at(Part::Partition(asked.partition));
        rows.pop().ok_or(Error::Interrupted { at })
    }

    /// Reads the partitions from the one that is asked for up to `end` together, as [`RawShuffle::read`] reads one. Small
    /// ones take less time so. The rows of all are in memory at once.
    ///
    /// # Errors
    /// As for [`RawShuffle::read`], of one of them.
    pub fn read_all(
        &self,
        asked: &Asked,
        end: u32,
        wait: &mut Wait<'_>,
    ) -> Result<Vec<ReadRows>, Error> {
        let at = self.at(Part::Partition(asked.partition));
        let Asked {
            generation,
            partition,
            width,
            ..
        } = *asked;
        let maps = asked.maps.clone();
        let maps = maps.map(|Range { start, end }| MapRange { first: start, end });
        let plane = self.member.plane();
        attempts(wait, &at, |_, wait| {
            if asked.is_checked {
                self.check_committed(generation, &at, wait)?;
            }
            let shuffle = ShuffleId(self.number);
            let stop = &mut || wait.check().is_err();
            let partitions = partition..end;
            let read = plane.read_all(shuffle, generation, partitions, maps, width, stop);
            let (partition, failure) = match read {
                Ok(rows) => return Ok(Some(rows)),
                Err(failure) => failure,
            };
            let at = self.at(Part::Partition(partition));
            let tried = self.tried(failure, &at, wait)?;
            let about = self.about(&at, wait)?;
            match tried {
                Tried::Again(reason) => {
                    self.check_lost(&about, reason, Some(generation), &at)?;
                    Ok(None)
                }
                Tried::Superseded(reason) => {
                    self.check_lost(&about, reason, Some(generation), &at)?;
                    Err(Error::Superseded {
                        at: at.clone(),
                        generation,
                        committed: about.committed,
                    })
                }
            }
        })
    }

    /// The maps that must run again, since all copies of some of their rows are lost.
    ///
    /// # Errors
    /// [`Error::Refused`] after the end of the shuffle; [`Error::Gone`]; [`Error::TimedOut`].
    pub fn lost(&self, wait: &mut Wait<'_>) -> Result<Vec<u32>, Error> {
        let about = self.about(&self.at(Part::Whole), wait)?;
        let lost = verdict::lost(&about, self.maps, None);
        Ok(lost.map(|lost| lost.maps).unwrap_or_default())
    }

    /// The generation in which all began anew, since a map had returned other rows. 0: none.
    ///
    /// # Errors
    /// [`Error::Refused`] after the end of the shuffle; [`Error::Gone`]; [`Error::TimedOut`].
    pub fn restarted(&self, wait: &mut Wait<'_>) -> Result<Generation, Error> {
        let about = self.about(&self.at(Part::Whole), wait)?;
        Ok(verdict::restarted(&about))
    }

    /// Says that nobody will read it any more: the servers drop its rows. Returns the rows, bytes and digest that it had,
    /// if it was committed.
    ///
    /// # Errors
    /// [`Error::Refused`] if it has ended; [`Error::Gone`]; [`Error::TimedOut`].
    pub fn finish(&self, wait: &mut Wait<'_>) -> Result<Option<Tally>, Error> {
        let at = self.at(Part::End);
        let finished = self
            .member
            .finish(self.number, &mut || wait.check().is_err());
        finished.map_err(|error| Error::of_service(error, &at, stopped(wait, &at)))
    }

    /// What the master knows of it.
    fn about(&self, at: &At, wait: &mut Wait<'_>) -> Result<About, Error> {
        let about = self
            .member
            .about(self.number, &mut || wait.check().is_err());
        about.map_err(|error| Error::of_service(error, at, stopped(wait, at)))
    }

    /// An error if this generation was not committed, nor a later one.
    fn check_committed(
        &self,
        generation: Generation,
        at: &At,
        wait: &mut Wait<'_>,
    ) -> Result<(), Error> {
        if generation.0 <= self.committed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let about = self.about(at, wait)?;
        let committed = about.committed.unwrap_or_default();
        self.committed(committed);
        let at = at.clone();
        match verdict::readable(&about, self.maps, generation) {
            Readable::Yes => Ok(()),
            Readable::Lost(Lost { maps, read_again }) => Err(Error::RowsLost {
                at,
                reason: format!(
                    "it is not committed in generation {}, and rows were lost",
                    generation.0
                ),
                maps,
                read_again,
            }),
            Readable::No(committed) => Err(Error::NotCommitted {
                at,
                generation,
                committed,
            }),
        }
    }

    /// An error if maps must run again.
    fn check_lost(
        &self,
        about: &About,
        reason: String,
        read: Option<Generation>,
        at: &At,
    ) -> Result<(), Error> {
        match verdict::lost(about, self.maps, read) {
            None => Ok(()),
            Some(Lost { maps, read_again }) => Err(Error::RowsLost {
                at: at.clone(),
                reason,
                maps,
                read_again,
            }),
        }
    }

    /// What a failure means: that a later attempt may succeed, or an error.
    fn tried(&self, failure: Failure, at: &At, wait: &mut Wait<'_>) -> Result<Tried, Error> {
        let failure = match self.member.explain(failure) {
            Ok(failure) => failure,
            Err(error) => return Err(Error::of_service(error, at, None)),
        };
        let stopped = stopped(wait, at);
        let at = at.clone();
        Err(match failure {
            Failure::Again(reason) => return Ok(Tried::Again(reason)),
            Failure::Superseded(reason) => return Ok(Tried::Superseded(reason)),
            Failure::Late(reason) => Error::LateAttempt { at, reason },
            Failure::NoRoom(reason) => Error::NoRoom { at, reason },
            Failure::Damaged(reason) => Error::DamagedRows { at, reason },
            Failure::Failed(reason) => Error::Failed { at, reason },
            Failure::Source(source) => Error::Source { at, source },
            Failure::Interrupted => stopped.unwrap_or(Error::Interrupted { at }),
        })
    }
}

impl fmt::Debug for RawShuffle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "RawShuffle({}: {} maps, number {})",
            self.name, self.maps, self.number
        )
    }
}
