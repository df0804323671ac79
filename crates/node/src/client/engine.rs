//! What the thread that leads does natively with what comes.

use std::time::Instant;

use treadle_net::Turn;

use super::fetch::Fetches;
use super::kept::Kept;
use super::put::Puts;
use super::workers::{News, Workers};
use super::{CONTROL, Change, Client, Item};
use crate::message::{FromClient, Standing, ToClient};
use crate::wire::{Link, WireError};
use crate::{caught, lock};

/// Packets taken from the scheduler at a time.
const PACKETS: usize = 16;

/// What has come and is not processed, and what is under way. Locked for short, never while the
/// application is called.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) control: Link<ToClient, FromClient>,
    pub(super) workers: Workers,
    pub(super) fetches: Fetches,
    pub(super) puts: Puts,
    pub(super) kept: Kept,
    /// When unused connections are looked for next.
    pub(super) sweep: Option<Instant>,
    /// What the notifier's timer was set to.
    pub(super) timer: Option<Instant>,
}

impl Engine {
    /// When something is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let due = [
            self.fetches.next_pause(),
            self.puts.next_pause(),
            self.sweep,
        ];
        due.into_iter().flatten().min()
    }
}

impl<T> Client<T> {
    /// Takes what a turn of the poller stands for. A panic is the end of the connection: nobody would
    /// hear of what it lost.
    pub(super) fn serve(&self, turn: Turn) {
        if let Err(reason) = caught(|| self.serve_turn(turn)) {
            self.fail(&reason);
        }
    }

    /// Does what is due by now.
    pub(super) fn on_time(&self) {
        if let Err(reason) = caught(|| self.do_what_is_due()) {
            self.fail(&reason);
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

    fn serve_turn(&self, turn: Turn) {
        let engine = &mut *lock(&self.engine);
        match turn.key() {
            CONTROL => {
                if self.take_control(engine) {
                    turn.again();
                }
                let mut sender = lock(&self.sender);
                sender.heard();
                sender.flush();
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
                self.digest(engine, news);
            }
        }
    }

    fn do_what_is_due(&self) {
        let engine = &mut *lock(&self.engine);
        let now = Instant::now();
        self.resume_paused(engine, now);
        self.put_again(engine, now);
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
            for message in decoder {
                match message {
                    Ok(message) => self.message(engine, message),
                    Err(error) => {
                        let error: WireError = error;
                        broken.get_or_insert(error.into());
                    }
                }
            }
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

    fn message(&self, engine: &mut Engine, message: ToClient) {
        let item = match message {
            ToClient::Notice { id, standing } => {
                self.notice(engine, id, standing);
                return;
            }
            ToClient::Place {
                id,
                object,
                workers,
            } => {
                self.place(engine, id, object, &workers);
                return;
            }
            ToClient::Bring(ids) => {
                for id in ids {
                    self.bring_again(engine, id);
                }
                return;
            }
            ToClient::Unkeep(ids) => {
                for id in ids {
                    engine.kept.remove(id);
                }
                return;
            }
            ToClient::Peer { worker, address } => {
                engine.workers.met(worker, address);
                return;
            }
            ToClient::PeerLost(worker) => {
                let mut news = News::default();
                engine.workers.lost(worker, &mut news);
                self.digest(engine, news);
                return;
            }
            ToClient::Joined(members) => {
                for member in &members {
                    engine.workers.met(member.worker, member.address.clone());
                }
                self.casts.joined(members);
                return;
            }
            ToClient::Left { worker, cause } => {
                self.casts.left(worker, cause);
                return;
            }
            ToClient::SettledAsked(worker) => {
                let settled = self.casts.settled();
                self.post([FromClient::SettledTold { worker, settled }]);
                return;
            }
            ToClient::Call(call) => Item::Call(call),
            ToClient::Answer(answer) => {
                let answer = self.told_who_has(engine, answer);
                match answer.and_then(|answer| self.told_held(engine, answer)) {
                    Some(answer) => Item::Answer(answer),
                    None => return,
                }
            }
            ToClient::Stuck { keys, reason } => Item::Stuck(keys, reason),
            ToClient::Unused(numbers) => Item::Unused(numbers),
            ToClient::Restarted => Item::Restarted,
        };
        lock(&self.inbox).push_back(item);
    }

    fn notice(&self, engine: &mut Engine, id: u32, standing: Standing) {
        let id = {
            let mut keys = lock(&self.keys);
            // What an earlier name stood for is another matter.
            match keys.last_named(id) {
                Some(kept) if keys.note(kept, &standing) => kept,
                _ => return,
            }
        };
        if !matches!(standing, Standing::Pending) {
            self.heard_of(engine, id);
        }
        let change = match standing {
            Standing::Finished { class, .. } => Change::Finished { class },
            Standing::Failed(failed) => Change::Failed(Box::new(failed)),
            Standing::Cancelled(reason) => Change::Cancelled(reason),
            Standing::Pending => Change::Pending,
            Standing::Unknown => Change::Unknown,
        };
        if let Some(change) = engine.puts.hold_back(id, change) {
            lock(&self.inbox).push_back(Item::Standing(id, change));
        }
        if engine.fetches.awaits(id) {
            self.resume(engine, id);
        }
    }

    /// The connection is over.
    pub(super) fn end(&self, engine: &mut Engine, reason: &str) {
        if self.ended.set(reason.to_owned()).is_err() {
            return;
        }
        lock(&self.inbox).push_back(Item::Closed(reason.to_owned()));
        self.casts.end();
        let mut news = News::default();
        engine.workers.close(&mut news);
        engine.puts.clear();
        engine.kept.clear();
        self.abandon_fetches(engine, news, reason);
        self.notifier.notify();
        self.signal.set();
    }
}
