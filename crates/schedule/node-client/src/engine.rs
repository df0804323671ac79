//! What the thread that leads does natively with what comes.

use std::collections::BTreeSet;
use std::time::Instant;

use treadle_client::{Effect, Effects};
use treadle_messages::{FromClient, ToClient};
use treadle_net::ReadyGuard;
use treadle_reactor::thread::{caught, lock};
use treadle_schedule_wire::{Link, WireError};
use treadle_types::WorkerId;

use super::workers::{Job, News, Workers};
use super::{CONTROL, Client, Incoming, State};

/// Packets taken from the scheduler at a time.
const PACKETS: usize = 16;

/// The connections, as the thread that leads uses them.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) control: Link<ToClient, FromClient>,
    pub(super) workers: Workers,
    /// When unused connections are looked for next.
    pub(super) sweep: Option<Instant>,
    /// What the notifier's timer was set to.
    pub(super) timer: Option<Instant>,
}

impl<T> Client<T> {
    /// When something is due.
    pub(super) fn next_due(&self, engine: &Engine) -> Option<Instant> {
        let due = lock(&self.core).next_due();
        let due = due.map(|due| self.start + due);
        due.into_iter().chain(engine.sweep).min()
    }

    /// Takes what a turn of the poller stands for. A panic is the end of the connection: nobody would
    /// hear of what it lost.
    pub(super) fn serve(&self, turn: ReadyGuard) {
        if let Err(reason) = caught(|| self.serve_turn(turn)) {
            self.fail(&reason.to_string());
        }
    }

    /// Does what is due by now.
    pub(super) fn on_time(&self) {
        if let Err(reason) = caught(|| self.do_what_is_due()) {
            self.fail(&reason.to_string());
        }
    }

    /// The connection is over, since something here has failed.
    pub fn fail(&self, reason: &str) {
        self.peer.start_close();
        // What is not told then is told by the reason itself, which comes first.
        let _ = caught(|| self.end(&mut lock(&self.engine), reason));
        self.notifier.notify();
        self.signal.set();
    }

    fn serve_turn(&self, turn: ReadyGuard) {
        let engine = &mut *lock(&self.engine);
        match turn.key() {
            CONTROL => {
                if self.take_control(engine) {
                    turn.again();
                }
                lock(&self.sender).heard();
                self.flush_now();
            }
            key => {
                let mut news = News::default();
                match Workers::by_poller_key(key) {
                    Some(worker) => engine.workers.take(worker, &mut news),
                    None => engine.workers.connected(&mut news),
                }
                if engine.sweep.is_none() {
                    engine.sweep = engine.workers.sweep(Instant::now());
                }
                self.handle(engine, news);
            }
        }
    }

    fn do_what_is_due(&self) {
        let engine = &mut *lock(&self.engine);
        self.handle(engine, [Incoming::Tick]);
        let now = Instant::now();
        if engine.sweep.is_some_and(|sweep| sweep <= now) {
            engine.sweep = engine.workers.sweep(now);
        }
    }

    /// Takes packets of the scheduler; whether there may be more.
    fn take_control(&self, engine: &mut Engine) -> bool {
        let mut packets = Vec::new();
        let received = engine.control.receive(PACKETS, &mut packets);
        let mut broken = None;
        for packet in packets {
            let decoder = match Link::<ToClient, FromClient>::decode(packet) {
                Ok(decoder) => decoder,
                Err(error) => {
                    broken.get_or_insert(error);
                    continue;
                }
            };
            let messages = decoder.filter_map(|message| match message {
                Ok(message) => Some(Incoming::Received(message)),
                Err(error) => {
                    let error: WireError = error;
                    broken.get_or_insert(error.into());
                    None
                }
            });
            self.handle(engine, messages);
        }
        if let Some(error) = broken {
            self.peer.start_close();
            self.end(engine, &error.to_string());
            return false;
        }
        match received {
            Ok(more) => more,
            Err(error) => {
                self.end(engine, &error.to_string());
                false
            }
        }
    }

    /// Tells the core what has happened, does what it says, and tells it what comes of that.
    pub(super) fn handle(&self, engine: &mut Engine, events: impl IntoIterator<Item = Incoming>) {
        let effects = self.tell_core(events);
        self.follow(engine, effects);
    }

    /// Tells the core what has happened; what else is to be done than tell the scheduler.
    fn tell_core(&self, events: impl IntoIterator<Item = Incoming>) -> Effects {
        let now = self.start.elapsed();
        let told = |core: &mut State<T>, effects: &mut Effects| {
            for event in events {
                core.handle(event, now, effects);
            }
        };
        self.step(told, None).1
    }

    /// Does what the core said, but for what the scheduler was told.
    pub(super) fn follow(&self, engine: &mut Engine, mut effects: Effects) {
        while !effects.is_empty() {
            let (mut asked, mut news) = (BTreeSet::new(), News::default());
            for effect in effects {
                self.perform(engine, effect, &mut asked, &mut news);
            }
            // After all effects: requests to one worker leave together.
            for worker in asked {
                engine.workers.send(worker, &mut news);
            }
            effects = self.tell_core(news);
        }
    }

    fn perform(
        &self,
        engine: &mut Engine,
        effect: Effect,
        asked: &mut BTreeSet<WorkerId>,
        news: &mut News,
    ) {
        match effect {
            Effect::Get {
                request,
                worker,
                object,
            } => {
                engine.workers.push(worker, Job::Get { request, object });
                asked.insert(worker);
            }
            Effect::Unwanted(requests) => engine.workers.cancel(&requests),
            Effect::Bring(worker, load) => {
                engine.workers.push(worker, Job::Bring(load));
                asked.insert(worker);
            }
            Effect::Spread(workers, load) => self.casts.spread(workers, load),
            Effect::Met(worker, address) => engine.workers.met(worker, address),
            Effect::Lost(worker) => engine.workers.lost(worker, news),
            Effect::Joined(members) => self.casts.joined(members),
            Effect::Left(worker, cause) => self.casts.left(worker, cause),
            Effect::SettledAsked(worker) => {
                let settled = self.casts.settled();
                self.post(FromClient::SettledTold { worker, settled });
            }
            Effect::Verify(name, constant) => {
                news.push(Incoming::Verified(name, constant.is_intact()));
            }
            Effect::Send(_) | Effect::Wake => {}
        }
    }

    /// The connection is over.
    pub(super) fn end(&self, engine: &mut Engine, reason: &str) {
        if self.ended.set(reason.to_owned()).is_err() {
            return;
        }
        self.casts.end();
        self.handle(engine, [Incoming::Ended(reason.to_owned())]);
        let mut news = News::default();
        engine.workers.close(&mut news);
        self.handle(engine, news);
        self.signal.set();
    }
}
