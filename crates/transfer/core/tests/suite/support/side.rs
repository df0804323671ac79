//! One side's application and its memory, which know what must come and check it.

use std::collections::{BTreeMap, VecDeque};

use treadle_sim_kernel::Link;
use treadle_transfer::layout::Grid;
use treadle_transfer::{Extent, Failure, Pair, PairEnd, TransferId};

/// What came of an object at its sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Pending,
    Sent,
    Failed(Failure),
}

/// The memory of one extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    Empty,
    /// Some of its bytes were written, or wrong ones.
    Dirty,
    Good,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its header is here.
    Header,
    /// The application looks for memory.
    Allocating,
    /// The application gave it memory.
    Memory,
    Complete,
    Refused,
    Failed,
    Taken,
}

pub(crate) struct Inbound {
    pub(crate) bytes: u64,
    pub(crate) cost: u64,
    pub(crate) shared: bool,
    pub(crate) stage: Stage,
    pub(crate) mapped: bool,
    /// The budget for prefetching paid for it.
    pub(crate) prefetched: bool,
    grid: Grid,
    cells: Vec<Cell>,
}

impl Inbound {
    pub(crate) fn new(regions: &[u64], cost: u64, shared: bool) -> Self {
        let grid = Grid::new(regions);
        Self {
            bytes: regions.iter().sum(),
            cost,
            shared,
            stage: Stage::Header,
            mapped: false,
            prefetched: false,
            cells: vec![Cell::Empty; grid.len() as usize],
            grid,
        }
    }

    fn cell(&mut self, extent: &Extent) -> Option<&mut Cell> {
        let index = self
            .grid
            .index(extent.region, extent.offset, extent.length)?;
        self.cells.get_mut(index as usize)
    }

    /// Its bytes are written from now on.
    pub(crate) fn write(&mut self, extent: &Extent) -> Result<(), String> {
        if self.stage != Stage::Memory {
            return Err(format!(
                "{extent:?} is written into an object that is {:?}",
                self.stage
            ));
        }
        match self.cell(extent) {
            Some(cell) => *cell = Cell::Dirty,
            None => return Err(format!("{extent:?} is not in the object")),
        }
        Ok(())
    }

    /// All its bytes are written.
    pub(crate) fn written(&mut self, extent: &Extent, intact: bool) -> Result<(), String> {
        // An object that was given up meanwhile still has the memory until the write ends.
        if matches!(self.stage, Stage::Complete | Stage::Taken) {
            return Err(format!(
                "{extent:?} was being written when the object was complete"
            ));
        }
        if let (true, Some(cell)) = (intact, self.cell(extent)) {
            *cell = Cell::Good;
        }
        Ok(())
    }

    pub(crate) fn verify(&self) -> Result<(), String> {
        let bad = self.cells.iter().position(|cell| *cell != Cell::Good);
        match bad {
            Some(index) if !self.mapped => Err(format!(
                "complete, yet extent {index} is {:?}",
                self.cells[index]
            )),
            _ => Ok(()),
        }
    }
}

pub(crate) struct Side {
    pub(crate) pair: Pair,
    /// The control connection from here.
    pub(crate) control: Link,
    /// Objects that this side sends; index is the plan's.
    pub(crate) fates: Vec<Fate>,
    /// When the application asked to send them.
    pub(crate) asked: Vec<bool>,
    pub(crate) inbox: BTreeMap<TransferId, Inbound>,
    /// Offered, not received yet, in order.
    pub(crate) order: VecDeque<TransferId>,
    pub(crate) received: Vec<TransferId>,
    /// The object that the application waits for.
    pub(crate) awaited: Option<TransferId>,
    /// The application waits for any object.
    pub(crate) waits: bool,
    pub(crate) end: Option<PairEnd>,
}

impl Side {
    pub(crate) fn new(pair: Pair, objects: usize) -> Self {
        Self {
            pair,
            control: Link::default(),
            fates: vec![Fate::Pending; objects],
            asked: vec![false; objects],
            inbox: BTreeMap::new(),
            order: VecDeque::new(),
            received: Vec::new(),
            awaited: None,
            waits: false,
            end: None,
        }
    }

    pub(crate) fn inbound(&mut self, object: TransferId) -> Result<&mut Inbound, String> {
        self.inbox
            .get_mut(&object)
            .ok_or_else(|| format!("{object:?} was never offered"))
    }

    pub(crate) fn settle(&mut self, object: TransferId, fate: Fate) -> Result<(), String> {
        let index = object.0 as usize;
        if !self.asked[index] {
            return Err(format!("{object:?} is {fate:?} before it was sent"));
        }
        if self.fates[index] != Fate::Pending {
            return Err(format!(
                "{object:?} is {fate:?} after {:?}",
                self.fates[index]
            ));
        }
        self.fates[index] = fate;
        Ok(())
    }

    /// Whether the application has nothing to wait for.
    pub(crate) fn is_settled(&self) -> bool {
        self.fates.iter().all(|fate| *fate != Fate::Pending) && self.order.is_empty()
    }

    /// What this side remembers for its peer is bounded.
    pub(crate) fn check_memory(&self, credit: u64, prefetch: u64) -> Result<(), String> {
        let (mut headers, mut ahead, mut asked) = (0, 0, 0);
        for inbound in self.inbox.values() {
            let held = matches!(
                inbound.stage,
                Stage::Memory | Stage::Complete | Stage::Allocating
            );
            if held || inbound.stage == Stage::Header {
                headers += inbound.cost;
            }
            if held && inbound.bytes > 0 && inbound.prefetched {
                ahead += inbound.bytes;
            } else if held && inbound.bytes > 0 {
                asked += 1;
            }
        }
        if self.end.is_none() && headers > credit {
            return Err(format!("headers of {headers} bytes, credit {credit}"));
        }
        if ahead > prefetch {
            return Err(format!("{ahead} bytes ahead, the budget is {prefetch}"));
        }
        if asked > 1 {
            return Err(format!("{asked} objects have memory that nobody asked for"));
        }
        Ok(())
    }
}
