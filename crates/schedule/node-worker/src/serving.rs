//! Values for other workers and clients.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Instant;

use treadle_host::{Service, Session};
use treadle_messages::Data;
use treadle_net::{Incoming, NetError, Peer, Received, SMALL};
use treadle_reactor::clock;
use treadle_reactor::thread::lock;
use treadle_schedule_wire::{self as wire, data, encode_data};
use treadle_store::{Frames, StoreError};
use treadle_types::{ObjectId, WorkerId};
use treadle_worker::Event;

use super::bringing::Bringing;
use super::values::{Unserialisable, Value};
use super::{Inner, tracing};

/// What connections for values are for, in their handshake.
pub(super) const SERVICE: u32 = 0;

/// The service.
pub(super) struct Values(pub(super) Weak<Inner>);

impl Service for Values {
    fn connected(&self, peer: Peer) -> Box<dyn Session> {
        Box::new(Visitor {
            worker: Weak::clone(&self.0),
            bringing: Bringing::new(peer.clone()),
            peer,
            coming: VecDeque::new(),
        })
    }
}

/// Who is connected.
struct Visitor {
    worker: Weak<Inner>,
    peer: Peer,
    /// Requests whose bytes are on their way, oldest first.
    coming: VecDeque<Incoming>,
    bringing: Bringing,
}

impl Session for Visitor {
    fn turn(&mut self) -> Result<bool, NetError> {
        match self.worker.upgrade().filter(|inner| !inner.is_over()) {
            Some(inner) => self.answer(&inner).map(|()| true),
            None => Ok(false),
        }
    }
}

impl Visitor {
    /// Answers what has come.
    fn answer(&mut self, inner: &Arc<Inner>) -> Result<(), NetError> {
        while let Some(incoming) = self.peer.try_next()? {
            let (kind, sizes) = incoming.header();
            let bytes: u64 = sizes.iter().sum();
            if kind != Data::PUT && bytes > SMALL {
                incoming.refuse(&format!(
                    "a request of {bytes} bytes; at most {SMALL} are allowed"
                ));
                continue;
            }
            let limit = inner.options.store.limit;
            if kind == Data::PUT && bytes > limit {
                let name = &inner.options.name;
                incoming.refuse(&format!(
                    "{bytes} bytes are more than the memory limit of worker {name}, {limit} bytes"
                ));
                continue;
            }
            if kind == Data::PUT {
                self.bringing.announced(incoming)?;
                continue;
            }
            incoming.accept(Vec::new())?;
            self.coming.push_back(incoming);
        }
        while self.coming.front().is_some_and(Incoming::is_done) {
            let incoming = self.coming.pop_front().expect("just looked");
            let received = incoming.take()?;
            match received.kind {
                Data::GET => {
                    let began = Instant::now();
                    self.get(inner, &received)?;
                    inner.values.served(began.elapsed());
                }
                _ => self.peer.start_close(),
            }
        }
        self.bringing.turn(inner)
    }

    fn get(&self, inner: &Inner, received: &Received) -> Result<(), NetError> {
        let Some(data::Get {
            request,
            worker,
            object,
        }) = head(received.frames.first())
        else {
            self.peer.start_close();
            return Ok(());
        };
        let refuse = |reason: String| self.say(Data::NO_VALUE, &data::NoValue { request, reason });
        if worker != inner.id.0 {
            return refuse(mistaken(worker, inner));
        }
        let object = ObjectId::from_u64(object);
        let began = inner.tracing.is_on().then(clock::monotonic);
        let frames = match inner.values.get(object) {
            Ok(Value::Small(bytes)) => Ok(Arc::new(Frames::new(Data::SMALL, vec![bytes]))),
            Ok(Value::Stored(mut pinned)) => pinned.frames(),
            Err(error) => Err(error),
        };
        match frames {
            Ok(frames) => {
                let kind = frames.kind();
                let mut all = Vec::with_capacity(1 + frames.parts().len());
                all.push(encode_data(&data::Value { request, kind }));
                all.extend_from_slice(frames.parts());
                let sent = match self.peer.send(Data::VALUE, &all) {
                    // It has too many frames. The connection is of others, too.
                    Err(error) if self.peer.ended().is_none() => refuse(error.to_string()),
                    sent => sent.map(drop),
                };
                if let Some(began) = began {
                    inner.tracing.add(tracing::Event::Served {
                        object,
                        began,
                        nbytes: frames.nbytes(),
                        ended: clock::monotonic(),
                    });
                }
                sent
            }
            Err(error) => match unserialisable(&error) {
                Some(why) => {
                    let error = why.error.clone();
                    let answer = data::Unserialisable { request, error };
                    self.say(Data::UNSERIALISABLE, &answer)
                }
                None => {
                    if error.is_lost() {
                        inner.unreadable(object, &error);
                    }
                    refuse(error.to_string())
                }
            },
        }
    }

    /// Sends a message without further frames.
    fn say(&self, kind: u32, message: &impl prost::Message) -> Result<(), NetError> {
        self.peer.send(kind, &[encode_data(message)]).map(drop)
    }
}

impl Inner {
    /// A value that somebody asked for cannot be read any more.
    fn unreadable(&self, object: ObjectId, error: &StoreError) {
        // Whoever asked late for what was released finds nothing, too: the machine knows.
        if !matches!(error, StoreError::Unknown { .. }) {
            self.log(format_args!("{object:?} cannot be read: {error}"));
        }
        let mut machine = lock(&self.machine);
        // It may have come meanwhile, again.
        let is_lost = !matches!(error, StoreError::Unknown { .. }) || !self.values.has(object);
        if is_lost {
            self.handle_with(&mut machine, Event::Gone(object));
        }
        self.carry_out_unsent(machine, 0);
        self.flush();
    }
}

/// The message in the first frame of an object.
pub(super) fn head<M: prost::Message + Default>(frame: Option<&treadle_net::Frame>) -> Option<M> {
    wire::decode_data(frame?.as_slice()).ok()
}

/// Why a message for another incarnation is refused.
pub(super) fn mistaken(worker: u32, inner: &Inner) -> String {
    format!("{:?} is gone, this is {:?}", WorkerId(worker), inner.id)
}

fn unserialisable(error: &StoreError) -> Option<&Unserialisable> {
    match error {
        StoreError::Serialise { source, .. } => source.downcast_ref(),
        _ => None,
    }
}
