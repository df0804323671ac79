//! The pages of a history file, without a cluster.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use treadle_compress::Unpacker;
use treadle_host::pages::{Options as Pages, Page, PageServer, Refusals};
use treadle_reactor::thread::lock;
use treadle_sight::history::{Blocks, LONGEST as LONGEST_BLOCK, MAGIC};
use treadle_sight::{End, Event, Malformed, Sight, Tables};

use super::answers::{Answer, answer, page_of};
use super::assets;
use super::questions::{PATHS, Question};

/// Bytes for spans: all of a file that is as long as it may be.
const MEMORY: usize = 4 << 30;
/// The longest file that is read.
const LONGEST: u64 = 8 << 30;

const REFUSALS: Refusals = Refusals {
    unauthorized: "these pages are for who has their link: treadle history shows it\n",
    foreign_host: "the Host of the request is no name of this server: use its address\n",
    busy: "these pages are busy, or gone\n",
};

/// Why a history cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is a device or a pipe, for one.
    #[error("{0} is no ordinary file")]
    NoFile(PathBuf),
    /// It is something else.
    #[error("{0} is no history of Treadle, or one of another version")]
    Other(PathBuf),
    /// The pages cannot be served.
    #[error("serving pages at {address}: {source}")]
    Serve {
        /// Where.
        address: std::net::SocketAddr,
        /// Why.
        source: io::Error,
    },
}

/// The pages of a history file. They end when it is closed or dropped.
#[derive(Debug)]
pub struct History {
    pages: PageServer,
    sight: Arc<Mutex<Sight>>,
    /// Events that were read, and those that could not be.
    counts: (u64, u64),
    unread: u64,
    end: Option<End>,
}

impl History {
    /// Reads a file, and serves its pages.
    ///
    /// # Errors
    /// When it cannot be read or is something else, or the port is taken.
    pub fn open(path: &Path, options: Pages) -> Result<Self, HistoryError> {
        let read = |source| HistoryError::Read {
            path: path.to_owned(),
            source,
        };
        let metadata = std::fs::metadata(path).map_err(read)?;
        if !metadata.is_file() {
            return Err(HistoryError::NoFile(path.to_owned()));
        }
        let mut file = std::fs::File::open(path).map_err(read)?;
        let mut bytes = vec![0; MAGIC.len()];
        // A file may be something else, and endless.
        if file.read_exact(&mut bytes).is_err() || bytes != MAGIC {
            return Err(HistoryError::Other(path.to_owned()));
        }
        if file.take(LONGEST).read_to_end(&mut bytes).map_err(read)? as u64 == LONGEST {
            let error = io::Error::other(format!("it has more than {LONGEST} bytes"));
            return Err(read(error));
        }
        let mut sight = Sight::new(MEMORY);
        let mut counts = (0, 0);
        let unread = read_file(&bytes, &mut sight, &mut counts);
        sight.lacks(unread, counts.1);
        sight.was_read(bytes.len() as u64);
        let end = sight.end().cloned();
        drop(bytes);
        let sight = Arc::new(Mutex::new(sight));
        let mut pages: Vec<Page> = assets().collect();
        pages.extend(PATHS.into_iter().map(|path| page(path, &sight)));
        let address = options.address;
        let failed =
            |reason| tracing::error!(target: treadle_log::SCHEDULER, "{reason}: the pages end");
        let pages = PageServer::start(options, pages, REFUSALS, failed)
            .map_err(|source| HistoryError::Serve { address, source })?;
        Ok(Self {
            pages,
            sight,
            counts,
            unread,
            end,
        })
    }

    /// The link to the pages, with the token that lets in.
    pub fn link(&self) -> &str {
        self.pages.link()
    }

    /// Events that were read, and those that could not be.
    pub fn counts(&self) -> (u64, u64) {
        self.counts
    }

    /// Bytes that were left out: they are damaged, or the end of a file that was cut off.
    pub fn unread(&self) -> u64 {
        self.unread
    }

    /// How it ended; `None`: that is missing, as its scheduler was killed, or still writes it.
    pub fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// All spans of it.
    pub fn tables(&self) -> Tables {
        lock(&self.sight).tables()
    }

    /// Ends the pages.
    pub fn close(&self) {
        self.pages.close();
    }
}

/// Takes in what a file has; returns how many bytes are left out. What it is of, which says what times mean, comes
/// first, wherever the first block is that has it and is whole.
pub(in crate::sight) fn read_file(bytes: &[u8], sight: &mut Sight, counts: &mut (u64, u64)) -> u64 {
    let mut unpacked = Vec::new();
    for block in Blocks::new(bytes).flatten() {
        let is_found = match block.1 {
            Event::Packed { length, bytes } => {
                let mut inside = match unpack(length, bytes, &mut unpacked) {
                    true => Blocks::inside(&unpacked),
                    false => continue,
                };
                inside.any(|block| block.is_ok_and(|(_, event)| begins(&event, sight)))
            }
            event => begins(&event, sight),
        };
        if is_found {
            break;
        }
    }
    read_blocks(Blocks::new(bytes), sight, counts)
}

/// Whether an event says what a history is of, which is taken in.
fn begins(event: &Event<'_>, sight: &mut Sight) -> bool {
    matches!(event, Event::Began { .. }) && sight.handle(event, 0).is_ok()
}

/// Takes in what blocks have, those that are packed too; returns how many bytes are left out.
pub(in crate::sight) fn read_blocks(
    mut blocks: Blocks<'_>,
    sight: &mut Sight,
    counts: &mut (u64, u64),
) -> u64 {
    let mut unpacked = Vec::new();
    let mut unread = 0;
    for block in blocks.by_ref() {
        let taken = match block {
            Ok((_, Event::Packed { length, bytes })) => {
                if unpack(length, bytes, &mut unpacked) {
                    // Of one packing: what is packed twice cannot be read.
                    let mut inside = Blocks::inside(&unpacked);
                    for block in inside.by_ref() {
                        count(block, sight, counts);
                    }
                    unread += inside.unread();
                } else {
                    counts.1 += 1;
                }
                continue;
            }
            other => other,
        };
        count(taken, sight, counts);
    }
    unread + blocks.unread()
}

fn count(block: Result<(u64, Event<'_>), Malformed>, sight: &mut Sight, counts: &mut (u64, u64)) {
    match block.and_then(|(now, event)| sight.handle(&event, now)) {
        Ok(()) => counts.0 += 1,
        Err(_) => counts.1 += 1,
    }
}

/// Whether bytes are packed ones of this length, which are put into `into`.
fn unpack(length: u64, bytes: &[u8], into: &mut Vec<u8>) -> bool {
    let Ok(length) = usize::try_from(length) else {
        return false;
    };
    // Whoever wrote it never had more at a time, but for one block.
    if length > 2 * LONGEST_BLOCK || Unpacker::check(bytes, length).is_err() {
        return false;
    }
    into.clear();
    into.resize(length, 0);
    Unpacker::default().unpack(bytes, into).is_ok()
}

fn page(path: &'static str, sight: &Arc<Mutex<Sight>>) -> Page {
    let sight = Arc::clone(sight);
    Page {
        path,
        is_open: false,
        ask: Box::new(move |query, reply| {
            let question = match Question::of(path, query) {
                Ok(question) => question,
                Err(content) => return reply(page_of(content)),
            };
            let sight = lock(&sight);
            let known = match answer(&sight, question, 0, false) {
                Answer::Page(text) => Answer::Page(text),
                // Nobody knows more of it.
                Answer::AskKey(span) => {
                    let question = Question::Keyed(span, Vec::new());
                    answer(&sight, question, 0, false)
                }
            };
            drop(sight);
            if let Answer::Page(text) = known {
                reply(text);
            }
        }),
    }
}
