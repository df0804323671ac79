//! Spans, reduced to what pixels show.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use crate::groups::Groups;
use crate::ring::Ring;
use crate::span::{Kind, Span, lane};
use crate::sums::{Sum, Sums};
use crate::workers::{Running, Workers};

/// Rectangles of a picture.
pub(crate) const MOST: usize = 200_000;
/// Pixels of the widest picture.
const WIDEST: u32 = 8_192;

/// What a row of a picture is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// An executor thread of a worker, or its transfers, its disk, its shuffles.
    Worker,
    /// A group.
    Group,
}

/// What to draw.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The time from which, in nanoseconds.
    pub from: u64,
    /// The time until which.
    pub to: u64,
    /// How many pixels wide the picture is.
    pub width: u32,
    /// What its rows are.
    pub by: By,
    /// Of this group only.
    pub group: Option<u16>,
    /// Of this worker only.
    pub worker: Option<u32>,
}

/// A row.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Lane {
    /// The id of the worker; of a row of a group, its number.
    pub worker: u32,
    /// The executor thread, or one of [`lane`](crate::lane).
    pub lane: u16,
    /// For people.
    pub name: String,
}

/// What is drawn.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rectangle {
    /// The place of its row.
    pub lane: u32,
    /// The group; where there are several, that of the first.
    pub group: u32,
    /// Where it begins, as a share of the window.
    pub start: f32,
    /// How long it is, as a share of the window.
    pub length: f32,
    /// A number of [`Kind`].
    pub kind: u16,
    /// How many spans it is.
    pub count: u16,
}

impl Rectangle {
    /// Appends the 20 bytes of it, little-endian.
    pub fn put(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.lane.to_le_bytes());
        into.extend_from_slice(&self.group.to_le_bytes());
        into.extend_from_slice(&self.start.to_le_bytes());
        into.extend_from_slice(&self.length.to_le_bytes());
        into.extend_from_slice(&self.kind.to_le_bytes());
        into.extend_from_slice(&self.count.to_le_bytes());
    }
}

/// A picture of a window.
#[derive(Clone, Debug)]
pub struct Picture {
    /// Its rows.
    pub lanes: Vec<Lane>,
    /// The names of the groups that occur.
    pub groups: BTreeMap<u32, String>,
    /// Spans in the window.
    pub count: u64,
    /// Whether each of them is a rectangle of its own, and none of the window is lost.
    pub exact: bool,
    /// Ordered by row and start.
    pub rectangles: Vec<Rectangle>,
}

/// Some spans that are one rectangle, in nanoseconds of the window.
#[derive(Clone, Copy, Debug)]
struct Piece {
    lane: u32,
    group: u16,
    kind: Kind,
    start: u64,
    end: u64,
    count: u32,
}

/// Draws by worker: pieces that are shorter than a pixel are merged with their neighbours of the same
/// pixel. Where there are too many rows for the pixels, pixels are taken as wider.
struct Pieces {
    pieces: Vec<Piece>,
    /// By row: the piece that may still grow.
    last: Vec<Option<usize>>,
    columns: u64,
    window: u64,
}

impl Pieces {
    #[inline]
    fn column(&self, time: u64) -> u64 {
        (u128::from(time) * u128::from(self.columns) / u128::from(self.window)) as u64
    }

    /// Whether a piece is as long as a pixel.
    #[inline]
    fn is_long(&self, piece: &Piece) -> bool {
        u128::from(piece.end - piece.start) * u128::from(self.columns) >= u128::from(self.window)
    }

    /// Whether the second one is in the pixel of the first.
    #[inline]
    fn joins(&self, first: &Piece, second: &Piece) -> bool {
        !self.is_long(first)
            && !self.is_long(second)
            && self.column(first.start) == self.column(second.start)
    }

    fn join(first: &mut Piece, second: &Piece) {
        first.count = first.count.saturating_add(second.count);
        first.start = first.start.min(second.start);
        first.end = first.end.max(second.end);
        if first.kind != second.kind {
            first.kind = Kind::Several;
        }
    }

    #[inline]
    fn add(&mut self, piece: Piece) {
        let row = piece.lane as usize;
        if let Some(place) = self.last[row]
            && self.joins(&self.pieces[place], &piece)
        {
            Self::join(&mut self.pieces[place], &piece);
            return;
        }
        if self.pieces.len() == 2 * MOST {
            self.compact();
        }
        let is_long = self.is_long(&piece);
        self.last[row] = (!is_long).then_some(self.pieces.len());
        self.pieces.push(piece);
    }

    /// Orders them, and joins what is in one pixel; then there are at most [`MOST`].
    fn compact(&mut self) {
        loop {
            self.pieces
                .sort_unstable_by_key(|piece| (piece.lane, piece.start, piece.end));
            let mut kept: Vec<Piece> = Vec::with_capacity(self.pieces.len());
            // By row: the last short one, which long ones may have begun after.
            let mut short: Option<usize> = None;
            for piece in &self.pieces {
                match short {
                    Some(place)
                        if kept[place].lane == piece.lane && self.joins(&kept[place], piece) =>
                    {
                        Self::join(&mut kept[place], piece);
                    }
                    _ => {
                        if !self.is_long(piece) {
                            short = Some(kept.len());
                        }
                        kept.push(*piece);
                    }
                }
            }
            self.pieces = kept;
            if self.pieces.len() <= MOST {
                break;
            }
            if self.columns == 1 {
                self.pieces.truncate(MOST);
                break;
            }
            self.columns /= 2;
        }
        self.last.fill(None);
    }
}

/// Draws a window; what runs until `now`.
pub(crate) fn draw(
    (ring, sums): (&Ring, &Sums),
    groups: &Groups,
    workers: &Workers,
    window: Window,
    now: u64,
) -> Picture {
    let width = window.width.clamp(1, WIDEST);
    let window = Window {
        to: window.to.max(window.from.saturating_add(1)),
        width,
        ..window
    };
    let row = match window.worker {
        Some(id) => match workers.find(id) {
            Some(row) => Some(row),
            None => return empty(),
        },
        None => None,
    };
    // A fetch has another worker in the place of a group.
    let is_wanted = |span: &&Span| {
        row.is_none_or(|row| span.worker == row)
            && window
                .group
                .is_none_or(|group| span.group == group && span.kind() != Kind::Fetch)
    };
    let spans = ring.within(window.from, window.to).filter(is_wanted);
    let owners = workers.iter();
    let owners = owners.filter(|(own, _)| row.is_none_or(|row| *own == row));
    let running = owners.flat_map(|(row, worker)| worker.running.iter().map(move |it| (row, it)));
    let running = running.filter(|(_, it)| {
        it.began <= window.to
            && now >= window.from
            && window.group.is_none_or(|group| it.number == group)
    });
    let mut picture = match window.by {
        By::Worker => by_worker(spans, running, workers, window, now),
        By::Group => {
            // Of spans that are not kept any more there are sums, of all workers together.
            let oldest = ring.extent().filter(|_| ring.lost() > 0 && row.is_none());
            let sums = oldest.into_iter().flat_map(|(from, _)| sums.before(from));
            let sums = sums.filter(|sum| {
                sum.from <= window.to
                    && sum.to >= window.from
                    && window.group.is_none_or(|group| sum.group == group)
            });
            by_group((spans, sums), running, groups, window, now)
        }
    };
    for rectangle in &picture.rectangles {
        picture
            .groups
            .entry(rectangle.group)
            .or_insert_with(|| groups.name(rectangle.group as u16).into());
    }
    if ring.lost() > 0 && ring.extent().is_none_or(|(from, _)| from > window.from) {
        picture.exact = false;
    }
    picture
}

fn empty() -> Picture {
    Picture {
        lanes: Vec::new(),
        groups: BTreeMap::new(),
        count: 0,
        exact: true,
        rectangles: Vec::new(),
    }
}

fn by_worker<'a>(
    spans: impl Iterator<Item = &'a Span>,
    running: impl Iterator<Item = (u16, &'a Running)>,
    workers: &Workers,
    window: Window,
    now: u64,
) -> Picture {
    let mut picture = empty();
    let mut rows: BTreeMap<(u16, u16), u32> = BTreeMap::new();
    let mut known = ((u16::MAX, u16::MAX), 0);
    let length = window.to - window.from;
    let mut pieces = Pieces {
        pieces: Vec::new(),
        last: Vec::new(),
        columns: u64::from(window.width),
        window: length,
    };
    let mut row_of = |place: (u16, u16), pieces: &mut Pieces| {
        if known.0 != place {
            let next = rows.len() as u32;
            let lane = *rows.entry(place).or_insert(next);
            if lane == next {
                pieces.last.push(None);
            }
            known = (place, lane);
        }
        known.1
    };
    let inside = |time: u64| time.clamp(window.from, window.to) - window.from;
    for span in spans {
        picture.count += 1;
        let lane = row_of((span.worker, span.lane), &mut pieces);
        let group = match span.kind() {
            Kind::Fetch => 0,
            _ => span.group,
        };
        let whole = Piece {
            lane,
            group,
            kind: span.kind(),
            start: inside(span.start()),
            end: inside(span.end()),
            count: 1,
        };
        let reading = Piece {
            kind: Kind::Reading,
            end: inside(span.read()),
            ..whole
        };
        if span.kind() == Kind::Task && pieces.is_long(&reading) {
            pieces.add(reading);
            pieces.add(Piece {
                start: reading.end,
                ..whole
            });
        } else {
            pieces.add(whole);
        }
    }
    for (row, running) in running {
        picture.count += 1;
        let lane = row_of((row, running.lane), &mut pieces);
        pieces.add(Piece {
            lane,
            group: running.number,
            kind: Kind::Running,
            start: inside(running.began),
            end: inside(now),
            count: 1,
        });
    }
    pieces.compact();
    // Workers by name, their threads first.
    let mut order: Vec<((u16, u16), u32)> = rows.into_iter().collect();
    order.sort_by_cached_key(|((worker, lane), _)| {
        let name = workers.name(*worker);
        (name.len(), name, *worker, *lane)
    });
    let mut places = vec![0_u32; order.len()];
    for (place, ((worker, lane), before)) in order.iter().enumerate() {
        places[*before as usize] = place as u32;
        let name = workers.name(*worker);
        picture.lanes.push(Lane {
            worker: workers.get(*worker).map_or(0, |worker| worker.id),
            lane: *lane,
            name: match lane::name(*lane) {
                Some(what) => alloc::format!("{name} · {what}"),
                None => alloc::format!("{name} · {lane}"),
            },
        });
    }
    for piece in &mut pieces.pieces {
        piece.lane = places[piece.lane as usize];
    }
    pieces
        .pieces
        .sort_unstable_by_key(|piece| (piece.lane, piece.start, piece.end));
    picture.exact = pieces.pieces.iter().all(|piece| piece.count == 1);
    let share = |time: u64| (time as f64 / length as f64) as f32;
    let rectangles = pieces.pieces.iter().map(|piece| Rectangle {
        lane: piece.lane,
        group: piece.group.into(),
        start: share(piece.start),
        length: share(piece.end - piece.start),
        kind: piece.kind as u16,
        count: piece.count.min(u16::MAX.into()) as u16,
    });
    picture.rectangles = rectangles.collect();
    picture
}

/// Draws by group: how many of its spans there are at a time, for each pixel; before them, how many there were on
/// average.
fn by_group<'a>(
    (spans, sums): (impl Iterator<Item = &'a Span>, impl Iterator<Item = Sum>),
    running: impl Iterator<Item = (u16, &'a Running)>,
    groups: &Groups,
    window: Window,
    now: u64,
) -> Picture {
    let mut picture = empty();
    let length = window.to - window.from;
    let most = (MOST / groups.iter().count().max(1)).max(16);
    let columns = (window.width as usize).min(most);
    // By group: how many begin in a column and how many ended before it.
    let mut changes: BTreeMap<u16, Vec<(i32, i32)>> = BTreeMap::new();
    let column = |time: u64| {
        let inside = time.clamp(window.from, window.to) - window.from;
        let column = u128::from(inside) * columns as u128 / u128::from(length);
        (column as usize).min(columns - 1)
    };
    for sum in sums {
        let row = changes
            .entry(sum.group)
            .or_insert_with(|| vec![(0, 0); columns + 1]);
        // Up to the next one, and not into it.
        let first = column(sum.from);
        let last = if sum.to >= window.to {
            columns
        } else {
            column(sum.to)
        };
        let threads = sum.threads as i32;
        row[first].0 += threads;
        row[last.max(first + 1)].1 += threads;
    }
    let tasks = spans.filter(|span| span.kind() == Kind::Task);
    let tasks = tasks.map(|span| (span.group, span.start(), span.end()));
    let running = running.filter(|(_, it)| it.lane < lane::OTHERS);
    let running = running.map(|(_, it)| (it.number, it.began, now));
    for (group, start, end) in tasks.chain(running) {
        picture.count += 1;
        let row = changes
            .entry(group)
            .or_insert_with(|| vec![(0, 0); columns + 1]);
        row[column(start)].0 += 1;
        row[column(end) + 1].1 += 1;
    }
    picture.exact = false;
    for (group, row) in changes {
        let lane = picture.lanes.len() as u32;
        picture.lanes.push(Lane {
            worker: group.into(),
            lane: 0,
            name: groups.name(group).into(),
        });
        let mut active = 0_i32;
        // The rectangle that may still grow: where it began, and how many there are in it.
        let mut open: Option<(usize, i32)> = None;
        for (column, (begin, ended)) in row.into_iter().enumerate() {
            active += begin - ended;
            let now = if column == columns { 0 } else { active };
            if let Some((start, count)) = open {
                let is_alike = now > 0 && now.ilog2() == count.ilog2();
                if is_alike {
                    open = Some((start, count.max(now)));
                    continue;
                }
                picture.rectangles.push(Rectangle {
                    lane,
                    group: group.into(),
                    start: start as f32 / columns as f32,
                    length: (column - start) as f32 / columns as f32,
                    kind: Kind::Task as u16,
                    count: count.min(u16::MAX.into()) as u16,
                });
            }
            open = (now > 0).then_some((column, now));
        }
    }
    picture.rectangles.truncate(MOST);
    picture
}
