//! A worker whose invariants are verified after each event, and short names for what it is told.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::time::Duration;

use bytes::Bytes;
use treadle_types::{
    Assignment, Attempt, ClientId, Command, Holders, Input, ObjectId, Place, Priority, Report,
    Returned, TaskId, WorkerId,
};
use treadle_worker::{Config, Effect, Effects, Event, Outcome, Run, Status, Worker, WorkerError};

pub(crate) const TIME: Duration = Duration::from_micros(7);

pub(crate) fn object(task: u32) -> ObjectId {
    ObjectId::new(TaskId(task), Attempt(1))
}

pub(crate) fn holders(workers: &[u32]) -> Holders {
    workers.iter().map(|&worker| WorkerId(worker)).collect()
}

pub(crate) fn here(task: u32) -> Input {
    Input {
        object: object(task),
        nbytes: 0,
        place: Place::Here,
    }
}

pub(crate) fn at(task: u32, workers: &[u32]) -> Input {
    sized(task, workers, 10)
}

pub(crate) fn sized(task: u32, workers: &[u32], nbytes: u64) -> Input {
    Input {
        object: object(task),
        nbytes,
        place: Place::At(holders(workers)),
    }
}

pub(crate) fn inline(task: u32, value: &'static [u8]) -> Input {
    Input {
        object: object(task),
        nbytes: value.len() as u64,
        place: Place::Inline(Bytes::from_static(value)),
    }
}

/// A task whose rank is its number.
pub(crate) fn task(number: u32, inputs: Vec<Input>) -> Assignment {
    Assignment {
        object: object(number),
        priority: Priority {
            user: 0,
            submission: 0,
            rank: number,
        },
        client: ClientId(1),
        recipe: Bytes::from_static(b"recipe"),
        inputs: inputs.into(),
        keep: false,
        actor: false,
    }
}

/// A value of so many bytes in the store.
pub(crate) fn kept(nbytes: u64) -> Returned {
    Returned {
        nbytes,
        inline: None,
        kept: true,
        class: Bytes::new(),
    }
}

/// A small value that is not in the store.
pub(crate) fn small(value: &'static [u8]) -> Returned {
    Returned {
        nbytes: value.len() as u64,
        inline: Some(Bytes::from_static(value)),
        kept: false,
        class: Bytes::new(),
    }
}

pub(crate) fn run(task: u32) -> Effect {
    run_with(task, &[])
}

/// A task of [`task`] that reads these values from the store.
pub(crate) fn run_with(task: u32, inputs: &[u32]) -> Effect {
    Effect::Run(Run {
        object: object(task),
        client: ClientId(1),
        recipe: Bytes::from_static(b"recipe"),
        inputs: inputs.iter().map(|&input| (object(input), None)).collect(),
        keep: false,
        actor: false,
    })
}

pub(crate) fn fetch(task: u32, from: u32) -> Effect {
    Effect::Fetch {
        object: object(task),
        from: WorkerId(from),
        nbytes: 10,
    }
}

pub(crate) fn report(report: Report) -> Effect {
    Effect::Report(report)
}

pub(crate) fn finished(task: u32, value: Returned) -> Effect {
    report(Report::Finished {
        object: object(task),
        value,
        duration: TIME,
    })
}

pub(crate) fn stored(task: u32, nbytes: u64) -> Effect {
    report(Report::Stored {
        object: object(task),
        nbytes,
    })
}

pub(crate) fn unavailable(task: u32, input: u32, tried: &[u32]) -> Effect {
    report(Report::Unavailable {
        object: object(task),
        input: object(input),
        tried: holders(tried),
    })
}

pub(crate) fn immovable(task: u32, input: u32) -> Effect {
    report(Report::Immovable {
        object: object(task),
        input: object(input),
        error: Bytes::from_static(b"error"),
    })
}

pub(crate) fn copy_failed(task: u32, tried: &[u32]) -> Effect {
    report(Report::CopyFailed {
        object: object(task),
        tried: holders(tried),
    })
}

pub(crate) struct Bench(pub(crate) Worker);

impl Bench {
    pub(crate) fn new(threads: u32) -> Self {
        Self::with(Config {
            threads,
            ..Config::default()
        })
    }

    pub(crate) fn with(config: Config) -> Self {
        Self(Worker::new(config))
    }

    pub(crate) fn event(&mut self, event: Event) -> Vec<Effect> {
        self.attempt(event)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn attempt(&mut self, event: Event) -> Result<Vec<Effect>, WorkerError> {
        let mut effects = Effects::default();
        let result = self.0.handle(event, &mut effects);
        self.0.check().unwrap();
        assert!(
            result.is_ok() || effects.0.is_empty(),
            "an error has effects"
        );
        result.map(|()| effects.0)
    }

    pub(crate) fn status(&self, task: u32) -> Option<Status> {
        self.0.status(object(task))
    }

    pub(crate) fn assign(&mut self, task: Assignment) -> Vec<Effect> {
        self.event(Event::Command(Command::Assign(task)))
    }

    pub(crate) fn retract(&mut self, task: u32) -> Vec<Effect> {
        self.event(Event::Command(Command::Retract(object(task))))
    }

    pub(crate) fn cancel(&mut self, task: u32) -> Vec<Effect> {
        self.event(Event::Command(Command::Cancel(object(task))))
    }

    pub(crate) fn release(&mut self, task: u32) -> Vec<Effect> {
        self.event(Event::Command(Command::Release(object(task))))
    }

    pub(crate) fn copy(&mut self, task: u32, workers: &[u32]) -> Vec<Effect> {
        self.event(Event::Command(Command::Copy {
            object: object(task),
            nbytes: 10,
            holders: holders(workers),
        }))
    }

    pub(crate) fn ran(&mut self, task: u32, value: Returned) -> Vec<Effect> {
        self.ended(task, Outcome::Returned(value))
    }

    pub(crate) fn raised(&mut self, task: u32) -> Vec<Effect> {
        self.ended(task, Outcome::Raised(Bytes::from_static(b"error")))
    }

    pub(crate) fn ended(&mut self, task: u32, outcome: Outcome) -> Vec<Effect> {
        self.event(Event::Ran {
            object: object(task),
            outcome,
            duration: TIME,
        })
    }

    pub(crate) fn fetched(&mut self, task: u32, from: u32, nbytes: u64) -> Vec<Effect> {
        self.event(Event::Fetched {
            object: object(task),
            from: WorkerId(from),
            nbytes: Some(nbytes),
        })
    }

    pub(crate) fn not_fetched(&mut self, task: u32, from: u32) -> Vec<Effect> {
        self.event(Event::Fetched {
            object: object(task),
            from: WorkerId(from),
            nbytes: None,
        })
    }

    pub(crate) fn immovable(&mut self, task: u32, from: u32) -> Vec<Effect> {
        self.event(Event::Immovable {
            object: object(task),
            from: WorkerId(from),
            error: Bytes::from_static(b"error"),
        })
    }

    pub(crate) fn put(&mut self, task: u32) {
        let put = Event::Put {
            object: object(task),
            nbytes: 10,
        };
        assert_eq!(self.event(put), [stored(task, 10)]);
    }

    pub(crate) fn gone(&mut self, task: u32) -> Vec<Effect> {
        self.event(Event::Gone(object(task)))
    }
}
