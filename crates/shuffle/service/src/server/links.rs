//! The links of a server: its connections with the masters that it serves.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use tracing::warn;
use treadle_net::Peer;
use treadle_reactor::awake;
use treadle_reactor::thread::lock;
use treadle_shuffle::{ApplicationId, LinkId, ServerId, ToMaster, ToNode};
use treadle_shuffle_node::{Callbacks, Done, Plane, Waiter};
use treadle_shuffle_wire::{decode_shuffled, encode_shuffled};

use crate::server::end::End;
use crate::wire::{self, Call, Hello, Met, Room, Welcome, What};

/// The links of a server.
pub(crate) struct Links {
    /// For people.
    name: String,
    plane: OnceLock<Plane>,
    end: OnceLock<Arc<End>>,
    table: Mutex<BTreeMap<LinkId, Link>>,
    last: AtomicU64,
    /// Who the server is, with the room that it announced last.
    hello: Mutex<Hello>,
    /// What is to be said to masters, in order.
    outbox: Mutex<Vec<(LinkId, Said)>>,
    /// Held while it is said.
    sending: Mutex<()>,
    /// All masters are asked to copy what is here elsewhere.
    is_leaving: AtomicBool,
    /// Why the server cannot go on, if it cannot.
    failed: OnceLock<String>,
}

struct Link {
    peer: Peer,
    /// The number of the master.
    master: u32,
    /// When something had come of it, as it was looked at last.
    heard: Duration,
    /// When that changed, or it was asked whether it is there.
    asked: Duration,
    is_drained: bool,
}

enum Said {
    ToMaster(ToMaster),
    Dismissed(&'static str),
}

impl Links {
    pub(super) fn new(hello: Hello) -> Arc<Self> {
        Arc::new(Self {
            name: hello.name.clone(),
            plane: OnceLock::new(),
            end: OnceLock::new(),
            table: Mutex::default(),
            last: AtomicU64::new(0),
            hello: Mutex::new(hello),
            outbox: Mutex::default(),
            sending: Mutex::default(),
            is_leaving: AtomicBool::new(false),
            failed: OnceLock::new(),
        })
    }

    /// Says what the masters are for, and who waits for what they say. Before that there is none.
    pub(super) fn attach(&self, plane: Plane, end: Arc<End>) {
        let _ = self.plane.set(plane);
        let _ = self.end.set(end);
    }

    pub(super) fn plane(&self) -> &Plane {
        self.plane.get().expect("it is set before there is a link")
    }

    /// Who the server is.
    pub(super) fn hello(&self) -> Hello {
        lock(&self.hello).clone()
    }

    /// A master takes this server. `application`: whose it is, if it is that of one.
    ///
    /// # Errors
    /// A link has the number of this master. It may be that of another process. If it is an earlier one of this
    /// process, that ends soon, and the master tries again until then.
    pub(super) fn open(
        &self,
        peer: Peer,
        welcome: &Welcome,
        application: Option<u64>,
    ) -> Result<LinkId, String> {
        let table = lock(&self.table);
        let same = table.values().find(|link| link.master == welcome.master);
        if let Some(same) = same {
            let at = same.peer.address();
            return Err(format!(
                "the master that is connected from {at} has its number"
            ));
        }
        Ok(self.add(table, peer, welcome, application))
    }

    /// This server has connected to a master. Whoever else has said its number is another process.
    pub(super) fn open_own(&self, peer: Peer, welcome: &Welcome) -> LinkId {
        let table = lock(&self.table);
        let others = table.iter().filter(|(_, it)| it.master == welcome.master);
        let others: Vec<LinkId> = others.map(|(&link, _)| link).collect();
        drop(table);
        for other in others {
            self.close(other);
        }
        self.add(lock(&self.table), peer, welcome, None)
    }

    fn add(
        &self,
        mut table: MutexGuard<'_, BTreeMap<LinkId, Link>>,
        peer: Peer,
        welcome: &Welcome,
        application: Option<u64>,
    ) -> LinkId {
        let link = LinkId(1 + self.last.fetch_add(1, Ordering::Relaxed));
        let me = ServerId {
            node: welcome.id,
            incarnation: welcome.master,
        };
        let of_it = Link {
            peer: peer.clone(),
            master: welcome.master,
            heard: Duration::ZERO,
            asked: awake::now(),
            is_drained: false,
        };
        table.insert(link, of_it);
        // What follows may be said at once.
        drop(table);
        self.plane()
            .governed(link, me, application.map(ApplicationId));
        if self.is_leaving() {
            ask_to_leave(&peer);
        }
        link
    }

    /// A link has ended.
    pub(super) fn close(&self, link: LinkId) {
        let Some(closed) = lock(&self.table).remove(&link) else {
            return;
        };
        closed.peer.start_close();
        self.plane().ungoverned(link, closed.master);
        self.may_be_drained();
    }

    /// All links end.
    pub(super) fn close_all(&self) {
        for link in lock(&self.table).values() {
            link.peer.start_close();
        }
    }

    /// A master says something.
    ///
    /// # Errors
    /// It breaks the protocol.
    pub(super) fn hear(&self, link: LinkId, kind: u32, bytes: &Bytes) -> Result<(), String> {
        let Some(master) = lock(&self.table).get(&link).map(|link| link.master) else {
            return Ok(());
        };
        let met = || {
            let met = wire::decode::<Met>(bytes).map_err(|error| error.to_string())?;
            let server = ServerId {
                node: met.id,
                incarnation: master,
            };
            Ok::<_, String>((server, met.address))
        };
        match kind {
            wire::TO_NODE => {
                let message: ToNode = decode_shuffled(bytes).map_err(|error| error.to_string())?;
                // A master numbers its shuffles by itself. Nobody else begins or ends them, also before it does.
                if message.shuffle().0 >> 32 == u64::from(master) {
                    self.plane().hear_in(link, message);
                }
            }
            wire::MET => {
                let (server, address) = met()?;
                self.plane().met(server, address);
            }
            wire::LOST => self.plane().lost(met()?.0),
            wire::LEAVE => self.leave(),
            wire::DRAINED => {
                if let Some(link) = lock(&self.table).get_mut(&link) {
                    link.is_drained = true;
                }
                self.may_be_drained();
            }
            _ => {}
        }
        Ok(())
    }

    /// Asks all masters to copy what is here elsewhere, those that connect from now on, too.
    pub(super) fn leave(&self) {
        if self.is_leaving.swap(true, Ordering::SeqCst) {
            return;
        }
        for link in lock(&self.table).values() {
            ask_to_leave(&link.peer);
        }
        self.may_be_drained();
    }

    /// Has who waits for that ask.
    fn may_be_drained(&self) {
        if let Some(end) = self.end.get() {
            end.call();
        }
    }

    /// How many masters are connected.
    pub(super) fn masters(&self) -> usize {
        lock(&self.table).len()
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::SeqCst)
    }

    /// Whether all masters know that the server leaves, and none has anything here. Without a master there is nobody
    /// who could: then it counts whether the server leaves.
    pub(super) fn is_drained(&self) -> bool {
        let table = lock(&self.table);
        match table.is_empty() {
            true => self.is_leaving(),
            false => table.values().all(|link| link.is_drained),
        }
    }

    /// Tells all masters what room there is.
    pub(super) fn announce(&self, room: &Room) {
        lock(&self.hello).room = Some(*room);
        for link in lock(&self.table).values() {
            wire::send(&link.peer, wire::ROOM, room);
        }
    }

    /// Looks which masters are there, and asks those of which nothing was heard for `quiet`: one that hears this server
    /// all the time does not ask by itself, and may have nothing to say.
    pub(super) fn look(&self, quiet: Duration) {
        let mut heard = Vec::new();
        let now = awake::now();
        for (&id, link) in lock(&self.table).iter_mut() {
            let at = link.peer.stats().pair.heard;
            if std::mem::replace(&mut link.heard, at) != at {
                link.asked = now;
                heard.push(id);
            } else if now.saturating_sub(link.asked) >= quiet {
                link.asked = now;
                link.peer.probe();
            }
        }
        for link in heard {
            self.plane().heard(link);
        }
    }

    /// The server cannot go on. What was said first counts.
    pub(super) fn fail(&self, reason: String) {
        let _ = self.failed.set(reason);
    }

    pub(super) fn failed(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }
}

/// Asks a master to copy what it has here elsewhere. Nobody waits for the answer.
fn ask_to_leave(master: &Peer) {
    let what = Some(What::Drain(String::new()));
    wire::send(master, wire::CALL, &Call { number: 0, what });
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Links({})", self.name)
    }
}

/// What the plane wants of the process.
pub(super) struct ServerCallbacks(pub(super) Weak<Links>);

impl Callbacks for ServerCallbacks {
    fn tell(&self, link: LinkId, message: ToMaster) {
        if let Some(links) = self.0.upgrade() {
            lock(&links.outbox).push((link, Said::ToMaster(message)));
        }
    }

    fn dismissed(&self, link: LinkId, reason: &'static str) {
        if let Some(links) = self.0.upgrade() {
            lock(&links.outbox).push((link, Said::Dismissed(reason)));
        }
    }

    fn flush(&self) {
        let Some(links) = self.0.upgrade() else {
            return;
        };
        let _sending = lock(&links.sending);
        let said = std::mem::take(&mut *lock(&links.outbox));
        for (link, said) in said {
            let peer = lock(&links.table).get(&link).map(|link| link.peer.clone());
            let Some(peer) = peer else {
                continue;
            };
            match said {
                Said::ToMaster(message) => {
                    wire::send_bytes(&peer, wire::TO_MASTER, encode_shuffled(&message));
                }
                Said::Dismissed(reason) => {
                    wire::send_bytes(&peer, wire::DISMISSED, reason.into());
                    peer.start_close();
                }
            }
        }
    }

    /// Nobody waits in a server.
    fn wake(&self, _called: &[Arc<Waiter>]) {}

    fn wait(&self, _is_changed: &mut dyn FnMut() -> bool, _most: std::time::Duration) {}

    fn log(&self, line: fmt::Arguments<'_>) {
        if let Some(links) = self.0.upgrade() {
            warn!(target: treadle_log::SHUFFLE, "{}: {line}", links.name);
        }
    }

    fn panicked(&self, reason: String) {
        if let Some(links) = self.0.upgrade() {
            links.fail(reason);
        }
    }

    fn is_traced(&self) -> bool {
        false
    }

    fn traced(&self, _done: Done) {}
}
