//! A scheduler and workers on real sockets, with a script instead of a mind.

use std::time::{Duration, Instant};

use bytes::Bytes;
use treadle_messages::{Data, FromClient, Hello, Role, Standing, ToClient, Welcome};
use treadle_net::{Lane, Listener, Options, Peer, Received, Wait};
use treadle_node_client::{Change, Client, Event, Fetched};
use treadle_schedule_wire::{
    HELLO, Link, WELCOME, data, decode_data, decode_hello, encode_data, encode_welcome,
};
use treadle_security::secret::Secret;
use treadle_types::WorkerId;

/// Longer than anything here takes, also on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn within(limit: Duration) -> Wait<'static> {
    Wait {
        deadline: Some(Instant::now() + limit),
        interrupted: None,
    }
}

/// A wait that fails a test instead of hanging it.
pub(crate) fn soon() -> Wait<'static> {
    within(LONG)
}

pub(crate) fn options() -> Options {
    Options {
        secret: Some(Secret::new([7; 32]).unwrap()),
        lane: Some(Lane::new().unwrap()),
        ..Options::default()
    }
}

pub(crate) fn hello() -> Hello {
    Hello {
        role: Role::Client,
        name: "client-1".into(),
        python: "3.11".into(),
        version: "0".into(),
        info: Bytes::new(),
    }
}

/// Waits until something is so.
pub(crate) fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < LONG, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn receive(peer: &Peer) -> Received {
    let incoming = peer.next(&mut soon()).unwrap();
    incoming.accept(Vec::new()).unwrap();
    incoming.wait(&mut soon()).unwrap();
    incoming.take().unwrap()
}

/// A scheduler with one client.
pub(crate) struct Scheduler {
    pub(crate) peer: Peer,
    link: Link<FromClient, ToClient>,
    heard: std::collections::VecDeque<FromClient>,
    _listener: Listener,
}

pub(crate) type TestClient = Client<&'static str>;

/// A scheduler that answers the first words as it is told, and what became of the client.
pub(crate) fn greet(welcome: Welcome) -> (Scheduler, Result<TestClient, String>) {
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), &options()).unwrap();
    let address = listener.address().clone();
    let client = std::thread::spawn(move || {
        Client::connect(&address, &options(), &hello(), &mut soon()).map_err(|e| e.to_string())
    });
    let peer = listener.accept(&mut soon()).unwrap();
    let first = receive(&peer);
    assert_eq!(first.kind, HELLO);
    assert_eq!(decode_hello(first.frames[0].as_slice()).unwrap(), hello());
    peer.send(WELCOME, &[encode_welcome(&welcome).into()])
        .unwrap();
    let client = client.join().unwrap();
    let scheduler = Scheduler {
        link: Link::new(peer.clone(), u64::MAX),
        peer,
        heard: std::collections::VecDeque::new(),
        _listener: listener,
    };
    (scheduler, client)
}

pub(crate) fn start() -> (Scheduler, TestClient) {
    let (scheduler, client) = greet(Welcome::Accepted {
        id: 5,
        info: Bytes::from_static(b"info"),
    });
    (scheduler, client.unwrap())
}

impl Scheduler {
    pub(crate) fn say(&mut self, messages: impl IntoIterator<Item = ToClient>) {
        for message in messages {
            self.link.push(&message);
        }
        assert!(self.link.flush().unwrap());
    }

    /// What the client has said, without waiting.
    fn listen(&mut self) {
        let mut packets = Vec::new();
        let _ = self.link.receive(64, &mut packets);
        for packet in packets {
            let messages = Link::<FromClient, ToClient>::decode(packet).unwrap();
            self.heard.extend(messages.map(Result::unwrap));
        }
    }

    /// The next message.
    pub(crate) fn hear(&mut self) -> FromClient {
        eventually("a message of the client", || {
            self.listen();
            !self.heard.is_empty()
        });
        self.heard.pop_front().unwrap()
    }

    pub(crate) fn has_heard_nothing(&mut self) -> bool {
        self.listen();
        self.heard.is_empty()
    }
}

/// A worker that a test answers for.
pub(crate) struct Worker {
    pub(crate) id: WorkerId,
    pub(crate) listener: Listener,
    peer: Option<Peer>,
}

impl Worker {
    pub(crate) fn new(id: u32) -> Self {
        Self {
            id: WorkerId(id),
            listener: Listener::bind(&"127.0.0.1:0".parse().unwrap(), &options()).unwrap(),
            peer: None,
        }
    }

    pub(crate) fn address(&self) -> String {
        self.listener.address().to_string()
    }

    pub(crate) fn introduction(&self) -> ToClient {
        ToClient::Peer {
            worker: self.id,
            address: self.address(),
        }
    }

    fn peer(&mut self) -> &Peer {
        let listener = &self.listener;
        self.peer
            .get_or_insert_with(|| listener.accept(&mut soon()).unwrap())
    }

    /// The next request: its number and the value's name.
    pub(crate) fn asked(&mut self) -> (u64, u64) {
        let id = self.id;
        let received = receive(self.peer());
        assert_eq!(received.kind, Data::GET);
        let data::Get {
            request,
            worker,
            object,
        } = decode_data(received.frames[0].as_slice()).unwrap();
        assert_eq!(worker, id.0);
        (request, object)
    }

    pub(crate) fn give(&mut self, request: u64, kind: u32, frames: &[Bytes]) {
        let head = encode_data(&data::Value { request, kind });
        let all = [&[head], frames].concat();
        self.peer().send(Data::VALUE, &all).unwrap();
    }

    pub(crate) fn deny(&mut self, request: u64) {
        let reason = "not here".to_owned();
        let answer = encode_data(&data::NoValue { request, reason });
        self.peer().send(Data::NO_VALUE, &[answer]).unwrap();
    }

    /// The next value that is brought: its name, kind and frames.
    pub(crate) fn brought(&mut self) -> (u64, u32, Vec<Bytes>) {
        let id = self.id;
        let received = receive(self.peer());
        assert_eq!(received.kind, Data::PUT);
        let mut frames = received.frames.into_iter();
        let data::Put {
            object,
            kind,
            worker,
        } = decode_data(frames.next().unwrap().as_slice()).unwrap();
        assert_eq!(worker, id.0);
        (
            object,
            kind,
            frames.map(treadle_net::Frame::into_bytes).collect(),
        )
    }

    pub(crate) fn take(&mut self, object: u64, reason: &str) {
        let refused = (!reason.is_empty()).then(|| reason.to_owned());
        let answer = encode_data(&data::Taken { object, refused });
        self.peer().send(Data::TAKEN, &[answer]).unwrap();
    }

    /// The next value that is brought is not let in.
    pub(crate) fn refuse(&mut self) {
        let incoming = self.peer().next(&mut soon()).unwrap();
        assert_eq!(incoming.header().0, Data::PUT);
        incoming.refuse("no room");
    }
}

pub(crate) fn finished(holder: u32, object: u64) -> Standing {
    Standing::Finished {
        nbytes: 5000,
        inline: None,
        class: Bytes::from_static(b"class"),
        holder: Some(WorkerId(holder)),
        object,
    }
}

pub(crate) fn inline(value: &'static [u8]) -> Standing {
    Standing::Finished {
        nbytes: value.len() as u64,
        inline: Some(Bytes::from_static(value)),
        class: Bytes::new(),
        holder: None,
        object: 0,
    }
}

pub(crate) fn notice(id: u32, standing: Standing) -> ToClient {
    ToClient::Notice { id, standing }
}

/// Leads until there is an event.
pub(crate) fn next(client: &TestClient) -> Event<&'static str> {
    let lead = loop {
        if let Some(lead) = client.lead(client.rounds(), &mut soon()).unwrap() {
            break lead;
        }
    };
    loop {
        if let Some(event) = lead.next(|owner| *owner) {
            return event;
        }
        lead.receive(&mut soon()).unwrap();
    }
}

/// The next event, which says that a key has a value.
pub(crate) fn next_finished(client: &TestClient) -> &'static str {
    match next(client) {
        Event::Standing {
            owner,
            change: Change::Finished { .. },
        } => owner,
        other => panic!("{other:?}"),
    }
}

/// The next event, which is a value.
pub(crate) fn next_fetched(client: &TestClient) -> (u64, usize, Fetched) {
    match next(client) {
        Event::Fetched {
            ticket,
            index,
            outcome,
        } => (ticket, index, outcome),
        other => panic!("{other:?}"),
    }
}

/// A wanted key that the scheduler has been told of; its id.
pub(crate) fn watched(scheduler: &mut Scheduler, client: &TestClient, key: &'static str) -> u32 {
    assert!(client.watch(key.as_bytes(), key).unwrap().is_none());
    let FromClient::Want { first, keys } = scheduler.hear() else {
        panic!("not a Want");
    };
    assert_eq!(keys, [Bytes::from_static(key.as_bytes())]);
    first
}
