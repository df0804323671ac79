//! One content, and the sums over all.

use super::Cost;
use crate::{ObjectInfo, StoredId, Tally};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Io {
    None,
    Reading,
    Writing,
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) id: StoredId,
    pub(super) size: u64,
    pub(super) references: u64,
    /// One of the references is of whoever put it.
    pub(super) kept: bool,
    pub(super) pins: u64,
    pub(super) live: Option<u64>,
    /// All bytes of the frames, and those that are not the live form's memory.
    pub(super) frames: Option<(u64, u64)>,
    pub(super) shared: Option<u64>,
    pub(super) live_in_shared: bool,
    pub(super) file: Option<u64>,
    pub(super) io: Io,
    pub(super) orphan: bool,
    /// It cannot be serialised.
    pub(super) stuck: bool,
    /// When it was used last, on the ledger's own clock: the place in the order of eviction.
    pub(super) used: u64,
}

impl Entry {
    pub(super) fn new(id: StoredId, cost: Cost, references: u64, used: u64) -> Self {
        let mut entry = Entry {
            id,
            size: cost.bytes(),
            references,
            kept: true,
            pins: 0,
            live: None,
            frames: None,
            shared: None,
            live_in_shared: false,
            file: None,
            io: Io::None,
            orphan: false,
            stuck: false,
            used,
        };
        entry.attach(cost, false);
        entry
    }

    /// Adds a form: whether there was none of this kind. `overlap`: the memory of the live form is
    /// that of the frames or of the shared form.
    pub(super) fn attach(&mut self, cost: Cost, overlap: bool) -> bool {
        match cost {
            Cost::Live(bytes) if self.live.is_none() => {
                self.live = Some(bytes);
                self.live_in_shared = overlap && self.shared.is_some();
                if overlap && let Some((all, own)) = &mut self.frames {
                    *own = all.saturating_sub(bytes);
                }
            }
            Cost::Frames { bytes, own } if self.frames.is_none() => {
                self.frames = Some((bytes, own));
                self.stuck = false;
            }
            Cost::Shared(bytes) if self.shared.is_none() => {
                self.shared = Some(bytes);
                self.live_in_shared = overlap && self.live.is_some();
            }
            _ => return false,
        }
        true
    }

    /// For users.
    pub(super) fn info(&self) -> ObjectInfo {
        ObjectInfo {
            nbytes: self.size,
            references: self.references,
            pins: self.pins,
            live: self.live.is_some(),
            frames: self.frames.is_some(),
            shared: self.shared.is_some(),
            file: self.file.is_some(),
        }
    }

    /// What it takes of the managed memory.
    pub(super) fn managed(&self) -> u64 {
        let mut live = self.live.unwrap_or(0);
        if self.live_in_shared {
            live = live.saturating_sub(self.shared.unwrap_or(0));
        }
        let frames = match self.frames {
            Some((_, own)) if self.live.is_some() => own,
            Some((bytes, _)) => bytes,
            None => 0,
        };
        let reading = match self.io {
            Io::Reading => self.file.unwrap_or(0),
            _ => 0,
        };
        live + frames + reading
    }

    pub(super) fn in_memory(&self) -> bool {
        self.live.is_some() || self.frames.is_some() || self.shared.is_some()
    }

    /// Whether the value is elsewhere too, so that leaving memory needs no writing.
    pub(super) fn backed(&self) -> bool {
        self.file.is_some() || self.shared.is_some()
    }

    pub(super) fn evictable(&self) -> bool {
        self.pins == 0
            && self.io == Io::None
            && self.managed() > 0
            && (self.backed() || !self.stuck)
    }

    pub(super) fn unload(&mut self) {
        self.live = None;
        self.frames = None;
        self.live_in_shared = false;
    }
}

/// Sums over all contents, orphans included.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Totals {
    /// Bytes of managed memory, reads under way included.
    pub managed: u64,
    /// Contents, with their sizes.
    pub contents: Tally,
    /// Contents that are pinned, with their managed bytes.
    pub pinned: Tally,
    /// Live forms.
    pub live: Tally,
    /// Frames, those that view a live form's memory included.
    pub frames: Tally,
    /// Shared forms.
    pub shared: Tally,
    pub files: Tally,
    /// Contents that are on disk only, with the lengths of their files.
    pub spilled: Tally,
    /// Contents that cannot be serialised, with their managed bytes.
    pub stuck: Tally,
}

impl Totals {
    fn tallies(&mut self, entry: &Entry, act: impl Fn(&mut Tally, u64)) {
        let managed = entry.managed();
        act(&mut self.contents, entry.size);
        if entry.pins > 0 {
            act(&mut self.pinned, managed);
        }
        if let Some(bytes) = entry.live {
            act(&mut self.live, bytes);
        }
        if let Some((bytes, _)) = entry.frames {
            act(&mut self.frames, bytes);
        }
        if let Some(bytes) = entry.shared {
            act(&mut self.shared, bytes);
        }
        if let Some(bytes) = entry.file {
            act(&mut self.files, bytes);
            if !entry.in_memory() && entry.io == Io::None {
                act(&mut self.spilled, bytes);
            }
        }
        if entry.stuck {
            act(&mut self.stuck, managed);
        }
    }

    pub(super) fn add(&mut self, entry: &Entry) {
        self.managed += entry.managed();
        self.tallies(entry, Tally::add);
    }

    pub(super) fn subtract(&mut self, entry: &Entry) {
        self.managed -= entry.managed();
        self.tallies(entry, Tally::subtract);
    }
}
