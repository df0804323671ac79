//! What things cost beyond the cores of the state machines, learnt from real runs.

use std::fs;
use std::path::Path;
use std::time::Duration;

/// What a simulated cluster costs beside what its scheduler's core takes.
#[derive(Clone, Copy, Debug)]
pub struct Parameters {
    /// From one node to another, one way: writing, the wire, waking who reads.
    pub latency: Duration,
    /// Processor time of the scheduler's thread each time that it takes what has come, beside its core.
    pub turn: Duration,
    /// The same for each connection that it then writes to.
    pub write: Duration,
    /// Processor time of a worker for each task before it runs, and again after it, before it is reported.
    pub start: Duration,
    /// Processor time of a worker for each task beside that, for which nobody waits.
    pub worker: Duration,
    /// How much longer than its own time a task keeps its slot.
    pub over: Duration,
    /// How much of that varies from task to task.
    pub spread: Duration,
    /// Processor time of the client for a task of a `map`.
    pub map: Duration,
    /// The same for a task of a graph, from its `delayed` to the submission.
    pub delayed: Duration,
    /// The same for one call of `submit`, with the batch of `as_completed` that it reads.
    pub submit: Duration,
    /// The same for a message that says which tasks have finished.
    pub notice: Duration,
    /// From hearing of a finished task until a loop over `as_completed` has it, if the loop waits.
    pub look: Duration,
    /// Cores that all of them share; 0: as many as they want.
    pub cores: u32,
    /// Bytes of a value. Those of at most [`SMALL`] travel with messages.
    pub nbytes: u64,
    /// Bytes a second that a worker sends to others.
    pub bandwidth: f64,
}

/// The largest value that travels with messages, in bytes.
pub(super) const SMALL: u64 = 1024;

impl Default for Parameters {
    /// A network with a latency, and nothing else.
    fn default() -> Self {
        Self {
            latency: Duration::from_micros(100),
            turn: Duration::ZERO,
            write: Duration::ZERO,
            start: Duration::ZERO,
            worker: Duration::ZERO,
            over: Duration::ZERO,
            spread: Duration::ZERO,
            map: Duration::ZERO,
            delayed: Duration::ZERO,
            submit: Duration::ZERO,
            notice: Duration::ZERO,
            look: Duration::ZERO,
            cores: 0,
            nbytes: 8,
            bandwidth: 1.1e9,
        }
    }
}

impl Parameters {
    /// Reads a file of lines `name value`: times in microseconds, `bandwidth` in bytes a second. What it
    /// does not name stays as it is by default.
    ///
    /// # Errors
    /// When it cannot be read, or a line is neither empty, a comment (`#`), nor a name with its value.
    pub fn read(path: &Path) -> Result<Self, String> {
        let told = |what: String| format!("{}: {what}", path.display());
        let text = fs::read_to_string(path).map_err(|error| told(error.to_string()))?;
        Self::parse(&text).map_err(told)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut parameters = Self::default();
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let mut words = line.split_whitespace();
            let parsed = (words.next(), words.next(), words.next());
            let (Some(name), Some(value), None) = parsed else {
                return Err(format!("{line:?} is not a name and a value"));
            };
            let value: f64 = match value.parse() {
                Ok(value) if (0.0..1e15).contains(&value) => value,
                _ => return Err(format!("{value:?} of {name} is no amount")),
            };
            let time = Duration::from_secs_f64(value / 1e6);
            match name {
                "latency" => parameters.latency = time,
                "turn" => parameters.turn = time,
                "write" => parameters.write = time,
                "start" => parameters.start = time,
                "worker" => parameters.worker = time,
                "over" => parameters.over = time,
                "spread" => parameters.spread = time,
                "map" => parameters.map = time,
                "delayed" => parameters.delayed = time,
                "submit" => parameters.submit = time,
                "notice" => parameters.notice = time,
                "look" => parameters.look = time,
                "cores" => parameters.cores = value as u32,
                "nbytes" => parameters.nbytes = value as u64,
                "bandwidth" => parameters.bandwidth = value.max(1.0),
                _ => return Err(format!("{name} is no parameter")),
            }
        }
        Ok(parameters)
    }
}

/// The cores of a machine that all processes share: each piece of work takes the one that is free
/// first.
#[derive(Debug)]
pub(super) struct Cores(Vec<Duration>);

impl Cores {
    pub(super) fn new(count: u32) -> Self {
        Self(vec![Duration::ZERO; count as usize])
    }

    /// Work of this length could begin at `at`; returns when it is over.
    pub(super) fn work(&mut self, at: Duration, length: Duration) -> Duration {
        match self.0.iter_mut().min() {
            Some(core) => {
                *core = at.max(*core) + length;
                *core
            }
            None => at + length,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read_by_name() {
        let read = Parameters::parse("# of a machine\nlatency 55.5\n\ncores 2 # here\n").unwrap();
        assert_eq!(read.latency, Duration::from_nanos(55_500));
        assert_eq!((read.cores, read.nbytes), (2, 8));
        for wrong in [
            "latency",
            "latency x",
            "latency -1",
            "latency 1 2",
            "late 1",
        ] {
            assert!(Parameters::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn work_waits_for_a_core() {
        let ms = Duration::from_millis;
        let mut cores = Cores::new(2);
        let ends: Vec<_> = (0..3).map(|_| cores.work(ms(1), ms(10))).collect();
        assert_eq!(ends, [ms(11), ms(11), ms(21)]);
        assert_eq!(Cores::new(0).work(ms(1), ms(10)), ms(11));
    }
}
