//! Where the threads of tasks were, by group: a tree of the whole run, and the latest parts of it by time.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;

use crate::batch::Frame;
use crate::overview::Flame;

/// Bytes of names that are told apart, with what each takes beside; other places have [`OTHER`].
const MOST_NAMES: usize = 2 << 20;
const NAME: usize = 48;
/// Bytes of the longest name; what is longer is cut.
const LONGEST: usize = 200;
/// Places of the whole run. What would be one more counts where it was called.
const MOST: usize = 1 << 16;
/// How deep they are told apart.
const DEEPEST: u32 = 128;
/// Bytes of the latest parts that are kept, with what each takes beside its places.
const MOST_RECENT: usize = 8 << 20;
/// Places of an answer.
const MOST_SHOWN: usize = 4_000;
/// The name of what there is no room for.
const OTHER: &str = "(other places)";
/// The place of which all groups are a part.
const ROOT: u32 = 0;

/// A place: what called it, its name, and microseconds.
#[derive(Clone, Copy, Debug)]
struct Node {
    parent: u32,
    name: u32,
    depth: u32,
    time: u64,
}

/// A tree of places.
#[derive(Debug)]
struct Tree {
    /// Each one after the one that called it.
    nodes: Vec<Node>,
    /// By the place that called it, and the name.
    places: BTreeMap<(u32, u32), u32>,
}

impl Tree {
    fn new() -> Self {
        let root = Node {
            parent: ROOT,
            name: 0,
            depth: 0,
            time: 0,
        };
        Self {
            nodes: vec![root],
            places: BTreeMap::new(),
        }
    }

    /// The place with a name below another one; that itself where there is no room.
    fn below(&mut self, parent: u32, name: u32) -> u32 {
        if let Some(place) = self.places.get(&(parent, name)) {
            return *place;
        }
        let depth = self.nodes[parent as usize].depth + 1;
        if self.nodes.len() == MOST || depth > DEEPEST {
            return parent;
        }
        let place = self.nodes.len() as u32;
        self.nodes.push(Node {
            parent,
            name,
            depth,
            time: 0,
        });
        self.places.insert((parent, name), place);
        place
    }

    fn add(&mut self, part: &[Part]) {
        let mut places = Vec::with_capacity(part.len());
        for Part { parent, name, time } in part {
            let parent = parent.checked_sub(1);
            let parent = parent.map_or(ROOT, |parent| places[parent as usize]);
            let place = self.below(parent, *name);
            let node = &mut self.nodes[place as usize];
            node.time = node.time.saturating_add((*time).into());
            places.push(place);
        }
    }
}

/// A place of a part: the position of what called it plus one, its name, and microseconds.
#[derive(Clone, Copy, Debug)]
struct Part {
    parent: u32,
    name: u32,
    time: u32,
}

/// What one worker told at a time.
#[derive(Debug)]
struct Recent {
    from: u64,
    to: u64,
    worker: u16,
    parts: Box<[Part]>,
}

impl Recent {
    /// Bytes that it takes, with what the allocator takes for its places.
    fn bytes(&self) -> usize {
        size_of::<Self>() + 16 + size_of_val(&*self.parts)
    }
}

/// All of it.
#[derive(Debug)]
pub(crate) struct Profile {
    names: Vec<Box<str>>,
    by_name: BTreeMap<Box<str>, u32>,
    bytes: usize,
    whole: Tree,
    recent: VecDeque<Recent>,
    /// Bytes of them.
    kept: usize,
}

/// Of what a profile is asked for.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) group: Option<&'a str>,
    /// Nanoseconds.
    pub(crate) window: Option<(u64, u64)>,
    pub(crate) worker: Option<u16>,
}

impl Profile {
    pub(crate) fn new() -> Self {
        Self {
            names: vec![OTHER.into()],
            by_name: BTreeMap::from([(OTHER.into(), 0)]),
            bytes: NAME + OTHER.len(),
            whole: Tree::new(),
            recent: VecDeque::new(),
            kept: 0,
        }
    }

    fn intern(&mut self, name: &str) -> u32 {
        let end = name.len().min(LONGEST);
        let end = (0..=end).rev().find(|end| name.is_char_boundary(*end));
        let name = &name[..end.unwrap_or(0)];
        if let Some(number) = self.by_name.get(name) {
            return *number;
        }
        let bytes = NAME + 2 * name.len();
        if self.bytes + bytes > MOST_NAMES {
            return 0;
        }
        self.bytes += bytes;
        let number = self.names.len() as u32;
        self.names.push(name.into());
        self.by_name.insert(name.into(), number);
        number
    }

    /// A worker tells where its threads were.
    pub(crate) fn add(&mut self, worker: u16, (from, to): (u64, u64), frames: &[Frame<'_>]) {
        let parts: Box<[Part]> = frames
            .iter()
            .map(|frame| Part {
                parent: frame.parent.map_or(0, |parent| parent + 1),
                name: self.intern(frame.name),
                time: frame.time.min(u32::MAX.into()) as u32,
            })
            .collect();
        self.whole.add(&parts);
        let recent = Recent {
            from,
            to,
            worker,
            parts,
        };
        self.kept += recent.bytes();
        self.recent.push_back(recent);
        while self.kept > MOST_RECENT
            && let Some(oldest) = self.recent.pop_front()
        {
            self.kept -= oldest.bytes();
        }
    }

    /// Where threads were: the largest places, each after the one that called it.
    pub(crate) fn flame(&self, wanted: Wanted<'_>) -> Flame {
        let part = (wanted.window.is_some() || wanted.worker.is_some()).then(|| {
            let (from, to) = wanted.window.unwrap_or((0, u64::MAX));
            let mut tree = Tree::new();
            let recent = self.recent.iter();
            let recent = recent.filter(|one| one.from < to && one.to > from);
            for one in recent.filter(|one| wanted.worker.is_none_or(|row| row == one.worker)) {
                tree.add(&one.parts);
            }
            tree
        });
        let tree = part.as_ref().unwrap_or(&self.whole);
        let group = wanted.group.map(|group| {
            let name = self.by_name.get(group);
            name.and_then(|name| tree.places.get(&(ROOT, *name)))
        });
        let nodes = match group {
            Some(None) => &[][..],
            _ => &tree.nodes[..],
        };
        // Without those of other groups, and with the time of what they called.
        let top = group.flatten().copied().unwrap_or(ROOT);
        let mut is_in = vec![false; nodes.len()];
        let mut times: Vec<u64> = nodes.iter().map(|node| node.time).collect();
        for (place, node) in nodes.iter().enumerate() {
            is_in[place] = place as u32 == top || place > 0 && is_in[node.parent as usize];
        }
        for (place, node) in nodes.iter().enumerate().skip(1).rev() {
            let time = times[place];
            let whole = &mut times[node.parent as usize];
            *whole = whole.saturating_add(time);
        }
        let mut sizes: Vec<u64> = is_in
            .iter()
            .zip(&times)
            .filter_map(|(is_in, time)| is_in.then_some(*time))
            .collect();
        sizes.sort_unstable_by(|one, other| other.cmp(one));
        let least = sizes.get(MOST_SHOWN).map_or(1, |time| time + 1);
        let mut shown = vec![None; nodes.len()];
        let mut flame = Flame {
            from: self.recent.front().map(|one| one.from),
            to: self.recent.back().map(|one| one.to),
            ..Flame::default()
        };
        let mut names = BTreeMap::new();
        for (place, node) in nodes.iter().enumerate().filter(|(place, _)| is_in[*place]) {
            let is_top = place as u32 == top;
            let parent = shown[node.parent as usize];
            if times[place] < least || (parent.is_none() && !is_top) {
                continue;
            }
            shown[place] = Some(flame.nodes.len() as u32);
            let name = *names
                .entry((place > 0).then_some(node.name))
                .or_insert_with(|| {
                    flame.names.push(match place {
                        0 => "all groups".into(),
                        _ => self.names[node.name as usize].as_ref().into(),
                    });
                    flame.names.len() as u32 - 1
                });
            let parent = if is_top {
                -1
            } else {
                parent.map_or(-1, i64::from)
            };
            flame.nodes.push((parent, name, times[place] as f64 / 1e6));
        }
        flame.more = is_in.iter().filter(|is_in| **is_in).count() - flame.nodes.len();
        flame
    }

    pub(crate) fn check(&self) {
        assert!(self.bytes <= MOST_NAMES);
        assert_eq!(self.names.len(), self.by_name.len());
        assert!(self.whole.nodes.len() <= MOST);
        assert_eq!(self.whole.nodes.len(), self.whole.places.len() + 1);
        for (place, node) in self.whole.nodes.iter().enumerate().skip(1) {
            assert!((node.parent as usize) < place);
            assert!(node.depth <= DEEPEST);
        }
        let kept: usize = self.recent.iter().map(Recent::bytes).sum();
        assert_eq!(kept, self.kept);
        assert!(kept <= MOST_RECENT);
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;

    fn frame(parent: Option<u32>, name: &str, time: u64) -> Frame<'_> {
        Frame { parent, name, time }
    }

    #[test]
    fn groups_and_times_are_told_apart() {
        let mut profile = Profile::new();
        let one = [
            frame(None, "inc", 0),
            frame(Some(0), "f", 1_000_000),
            frame(Some(1), "g", 2_000_000),
            frame(None, "sum", 0),
            frame(Some(3), "f", 500_000),
        ];
        profile.add(0, (0, 10), &one);
        profile.add(1, (10, 20), &one[..3]);
        profile.check();
        let all = profile.flame(Wanted::default());
        assert_eq!(all.nodes[0], (-1, 0, 6.5));
        assert_eq!(all.names, ["all groups", "inc", "f", "g", "sum"]);
        let of = |wanted| {
            let flame = profile.flame(wanted);
            let nodes = flame.nodes.iter();
            let nodes = nodes.map(|(parent, name, time)| {
                format!("{parent} {} {time}", flame.names[*name as usize])
            });
            nodes.collect::<Vec<_>>()
        };
        let inc = Wanted {
            group: Some("inc"),
            ..Wanted::default()
        };
        assert_eq!(of(inc), ["-1 inc 6", "0 f 6", "1 g 4"]);
        let late = Wanted {
            window: Some((10, 15)),
            ..inc
        };
        assert_eq!(of(late), ["-1 inc 3", "0 f 3", "1 g 2"]);
        let first = Wanted {
            worker: Some(0),
            ..inc
        };
        assert_eq!(of(first), of(late));
        let nobody = Wanted {
            group: Some("nobody"),
            ..inc
        };
        assert_eq!(of(nobody), [""; 0]);
    }

    #[test]
    fn short_parts_count_with_what_they_take_beside() {
        let mut profile = Profile::new();
        for at in 0..MOST_RECENT as u64 / 16 {
            profile.add(0, (at, at + 1), &[frame(None, "f", 1)]);
        }
        profile.check();
        let each = size_of::<Recent>() + size_of::<Part>();
        assert!(profile.recent.len() * each <= MOST_RECENT);
        assert!(profile.recent.capacity() * size_of::<Recent>() <= 2 * MOST_RECENT);
    }

    #[test]
    fn what_there_is_no_room_for_counts_where_it_was_called() {
        let mut profile = Profile::new();
        // Too deep.
        let deep: Vec<_> = (0..1_000_u32)
            .map(|place| frame(place.checked_sub(1), "f", 1))
            .collect();
        profile.add(0, (0, 1), &deep);
        // Too many, with names that take too much.
        let names: Vec<_> = (0..2 * MOST)
            .map(|number| format!("{number}{}", "x".repeat(LONGEST)))
            .collect();
        for names in names.chunks(1_000) {
            let wide: Vec<_> = names.iter().map(|name| frame(None, name, 1)).collect();
            profile.add(0, (1, 2), &wide);
        }
        for _ in 0..20 {
            let again: Vec<_> = (0..MOST).map(|_| frame(None, "f", 1)).collect();
            profile.add(0, (2, 3), &again);
        }
        profile.check();
        let all = profile.flame(Wanted::default());
        let micros = 1_000 + 2 * MOST + 20 * MOST;
        assert_eq!(all.nodes[0].2, micros as f64 / 1e6);
        assert!(all.nodes.len() <= MOST_SHOWN + 1);
    }
}
