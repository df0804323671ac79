//! What happens, for people: lines on standard error, or in a file.
//!
//! Events are told with [`tracing`]; [`init`] has them written, as far as `TREADLE_LOG` lets them
//! through. Whoever has one hands it over and goes on: a thread of its own writes. Standard error may
//! be a pipe that nobody reads, and then a write would wait for ever, in the thread that keeps the
//! cluster going. Lines for which there is no room are dropped, and counted.

mod file;

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, Once};
use std::time::Duration;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Layer, fmt, registry};
use treadle_reactor::thread::{self, lock};

pub use file::to_file;

/// The target of the scheduler's events.
pub const SCHEDULER: &str = "treadle::scheduler";
/// The target of workers' events.
pub const WORKER: &str = "treadle::worker";
/// The target of a process of the shuffle service.
pub const SHUFFLE: &str = "treadle::shuffle";
/// The target of clients' events.
pub const CLIENT: &str = "treadle::client";

/// Says what is written: a level, and others for targets, such as `info,treadle::worker=debug`.
const FILTER: &str = "TREADLE_LOG";
/// Lines that may wait.
const LINES: usize = 1000;
/// Bytes of a line, about; the rest of it is left out.
const LONGEST: usize = 4000;
/// What ends a process waits so long for its last lines.
const PATIENCE: Duration = Duration::from_millis(500);

/// Lines on their way.
struct Writer {
    lines: SyncSender<String>,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    counts: Mutex<Counts>,
    written: Condvar,
}

#[derive(Default)]
struct Counts {
    /// Lines that were taken and are not written yet.
    waiting: usize,
    dropped: u64,
}

impl Writer {
    /// Has a thread write to `out`.
    fn start(out: impl Write + Send + 'static) -> io::Result<Self> {
        let (lines, taken) = sync_channel(LINES);
        let state = Arc::new(State::default());
        let own = Arc::clone(&state);
        thread::start("treadle-log", move || write(&taken, &own, out))?;
        Ok(Self { lines, state })
    }

    fn put(&self, mut line: String) {
        if line.len() > LONGEST {
            let whole = (0..=LONGEST).rev().find(|&end| line.is_char_boundary(end));
            line.truncate(whole.unwrap_or(0));
            line.push_str(" …");
        }
        // First: the thread that writes must not take a line off the count before it is on it.
        let mut counts = lock(&self.state.counts);
        match self.lines.try_send(line) {
            Ok(()) => counts.waiting += 1,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => counts.dropped += 1,
        }
    }

    fn flush(&self, patience: Duration) {
        let counts = lock(&self.state.counts);
        let empty = |counts: &mut Counts| counts.waiting > 0;
        let _ = self
            .state
            .written
            .wait_timeout_while(counts, patience, empty);
    }
}

fn write(lines: &Receiver<String>, state: &State, mut out: impl Write) {
    while let Ok(line) = lines.recv() {
        // A standard error that is closed takes nothing.
        let _ = writeln!(out, "{line}");
        let dropped = std::mem::take(&mut lock(&state.counts).dropped);
        if dropped > 0 {
            let _ = writeln!(
                out,
                "treadle: {dropped} lines were dropped: nobody read them"
            );
        }
        lock(&state.counts).waiting -= 1;
        state.written.notify_all();
    }
}

/// That of a process, made if need be; a forked child has its own.
fn writer(make: bool) -> Option<Arc<Writer>> {
    static WRITER: Mutex<Option<(u32, Arc<Writer>)>> = Mutex::new(None);
    let own = std::process::id();
    let mut known = lock(&WRITER);
    if known.as_ref().is_none_or(|(process, _)| *process != own) {
        if !make {
            return None;
        }
        let started = Writer::start(io::stderr()).ok()?;
        *known = Some((own, Arc::new(started)));
    }
    known.as_ref().map(|(_, writer)| Arc::clone(writer))
}

/// Takes the text of one event.
struct Line;

impl Write for Line {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        // Without a thread for it there is nobody to tell.
        if let Some(writer) = writer(true) {
            writer.put(String::from_utf8_lossy(text).trim_end().to_owned());
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Has events of this process written to standard error from now on, `info` and above unless the
/// environment variable `TREADLE_LOG` says otherwise. It is read once. A program that has set a
/// subscriber of its own before keeps it.
pub fn init() {
    static FIRST: Once = Once::new();
    FIRST.call_once(|| {
        let everything = || Targets::new().with_default(LevelFilter::INFO);
        let wanted = std::env::var(FILTER).unwrap_or_default();
        let parsed = match wanted.trim() {
            "" => Ok(everything()),
            wanted => wanted.parse::<Targets>(),
        };
        let fault = parsed.as_ref().err().map(ToString::to_string);
        let filter = parsed.unwrap_or_else(|_| everything());
        let lines = fmt::layer().with_ansi(false).with_writer(|| Line);
        let subscriber = registry().with(lines.with_filter(filter));
        let _ = tracing::subscriber::set_global_default(subscriber);
        if let Some(fault) = fault {
            tracing::warn!(
                target: "treadle",
                "{FILTER}={wanted:?} is no filter ({fault}): write a level (error, warn, info, debug, \
                 trace, off), or TARGET=LEVEL, or several with commas between"
            );
        }
    });
}

/// Waits a little until what was said is written: before the process ends.
pub fn flush() {
    if let Some(writer) = writer(false) {
        writer.flush(PATIENCE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes nothing until it is opened, and keeps what it took.
    #[derive(Clone, Default)]
    struct Pipe(Arc<Taken>);

    #[derive(Default)]
    struct Taken {
        /// Whether it is open, and what it took.
        state: Mutex<(bool, Vec<u8>)>,
        opened: Condvar,
    }

    impl Pipe {
        fn open(&self) {
            lock(&self.0.state).0 = true;
            self.0.opened.notify_all();
        }

        fn text(&self) -> String {
            String::from_utf8(lock(&self.0.state).1.clone()).unwrap()
        }
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let closed = |state: &mut (bool, Vec<u8>)| !state.0;
            let state = lock(&self.0.state);
            let mut state = self.0.opened.wait_while(state, closed).unwrap();
            state.1.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn who_says_something_does_not_wait_for_a_pipe_that_nobody_reads() {
        let pipe = Pipe::default();
        let writer = Writer::start(pipe.clone()).unwrap();
        let count = LINES + 100;
        for number in 0..count {
            writer.put(format!("line {number}"));
        }
        pipe.open();
        writer.flush(Duration::from_secs(30));
        let text = pipe.text();
        let lines: Vec<&str> = text.lines().collect();
        let is_note = |line: &&&str| line.contains("lines were dropped");
        let note = lines.iter().find(is_note).expect("they were counted");
        let dropped: usize = note.split(' ').nth(1).unwrap().parse().unwrap();
        assert!(dropped > 0);
        assert_eq!(lines.len() - 1 + dropped, count);
        assert_eq!(lines[0], "line 0");
    }

    #[test]
    fn a_long_line_is_cut() {
        let pipe = Pipe::default();
        pipe.open();
        let writer = Writer::start(pipe.clone()).unwrap();
        writer.put("ä".repeat(LONGEST));
        writer.flush(Duration::from_secs(30));
        let text = pipe.text();
        assert!(
            text.len() < LONGEST + 10 && text.ends_with(" …\n"),
            "{}",
            text.len()
        );
    }
}
