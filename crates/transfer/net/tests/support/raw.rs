//! A client that speaks the protocol by itself, as `proto/transfer.proto` describes it, and so may
//! say anything.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use prost::Message as _;
use treadle_net::wire::{self, FRAME_HEADER, PREAMBLE, Segment, proto};
use treadle_net::{Address, Peer};
use treadle_security::secret::{Role, Secret, random};
use treadle_transfer::{Extent, Message, TransferId};

use super::{LONG, secret};

/// An open connection.
pub struct Raw<S = TcpStream> {
    pub stream: S,
    /// What the listener said.
    pub hello: proto::Hello,
    pub session_secret: Secret,
    /// What was written in the handshake.
    pub recorded: Vec<u8>,
    input: Vec<u8>,
}

pub fn dial(address: &Address) -> TcpStream {
    let stream = TcpStream::connect((address.host.as_str(), address.port)).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.set_write_timeout(Some(LONG)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

pub fn hello(role: proto::Role) -> proto::Hello {
    proto::Hello {
        role: role.into(),
        nonce: random::<32>().to_vec(),
        credit: 8 << 20,
        proves: true,
        ..Default::default()
    }
}

/// The same from a client that dialled this address.
pub fn hello_to(address: &Address, role: proto::Role) -> proto::Hello {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap();
    let namespace = std::fs::read_link("/proc/self/ns/net").unwrap();
    let socket = proto::Socket {
        address: format!("{}:{}", address.host, address.port),
        written: address.to_string(),
        loopback: [boot, namespace.into_os_string().into_encoded_bytes()].concat(),
    };
    dialled(Some(socket), b"", role)
}

/// The same from a client that dialled a Unix socket.
pub fn hello_unix(name: &[u8], role: proto::Role) -> proto::Hello {
    dialled(None, name, role)
}

fn dialled(socket: Option<proto::Socket>, unix: &[u8], role: proto::Role) -> proto::Hello {
    proto::Hello {
        dialled: Some(proto::Dialled {
            socket,
            unix: unix.to_vec(),
        }),
        ..hello(role)
    }
}

/// A preamble, and what it announces.
pub fn preamble(hello: &proto::Hello) -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::encode_preamble(&hello.encode_to_vec(), &mut bytes);
    bytes
}

/// With its length before it.
pub fn proof(mac: &[u8]) -> Vec<u8> {
    let proof = proto::Proof {
        mac: mac.to_vec(),
        refused: String::new(),
    };
    let bytes = proof.encode_to_vec();
    [&(bytes.len() as u32).to_le_bytes(), bytes.as_slice()].concat()
}

fn exactly(stream: &mut impl Read, count: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl<S: Read + Write> Raw<S> {
    /// Goes through the handshake. The error is the listener's reason, if it gave one.
    pub fn open(stream: S, hello: &proto::Hello, key: &Secret) -> Result<Self, String> {
        Self::open_with(stream, hello, hello, key, Role::Client)
    }

    /// The same with a proof by this side of other first words.
    pub fn open_with(
        mut stream: S,
        hello: &proto::Hello,
        proved: &proto::Hello,
        key: &Secret,
        side: Role,
    ) -> Result<Self, String> {
        let told = |error: io::Error| error.to_string();
        let mut transcript = preamble(proved);
        let mut recorded = preamble(hello);
        stream.write_all(&recorded).map_err(told)?;
        let first = exactly(&mut stream, PREAMBLE).map_err(told)?;
        let length = wire::decode_preamble(&first).unwrap().unwrap();
        let second = exactly(&mut stream, length).map_err(told)?;
        let theirs = proto::Hello::decode(second.as_slice()).unwrap();
        transcript.extend(first);
        transcript.extend(second);
        let own = proof(&key.prove(side, &transcript));
        // A listener that has refused already closes.
        let _ = stream.write_all(&own);
        recorded.extend(own);
        let length = exactly(&mut stream, 4).map_err(told)?;
        let length = u32::from_le_bytes(length.try_into().unwrap());
        let answer = exactly(&mut stream, length as usize).map_err(told)?;
        let answer = proto::Proof::decode(answer.as_slice()).unwrap();
        if !answer.refused.is_empty() {
            return Err(answer.refused);
        }
        assert!(key.verify(Role::Server, &transcript, &answer.mac));
        let purpose = [b"session\n", transcript.as_slice()].concat();
        Ok(Self {
            stream,
            hello: theirs,
            session_secret: Secret::new(key.prove(Role::Server, &purpose)).unwrap(),
            recorded,
            input: Vec::new(),
        })
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub fn tell(&mut self, message: &Message) {
        let mut frame = Vec::new();
        wire::encode_message(message, &mut frame);
        self.write(&frame);
    }

    /// The next frame; `None` at the end.
    pub fn frame(&mut self) -> Option<Vec<u8>> {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            if let Some(length) = wire::frame_length(&self.input).unwrap()
                && length <= self.input.len()
            {
                return Some(self.input.drain(..length).collect());
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(count) => self.input.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Reads messages until one is like that. Panics at the end of the connection.
    pub fn until(&mut self, like: impl Fn(&Message) -> bool) -> Message {
        loop {
            let frame = self.frame().expect("the connection ended");
            if let Ok(Some(wire::Frame::Message(message))) = wire::decode_frame(&frame)
                && like(&message)
            {
                return message;
            }
        }
    }

    /// Reads to the end of the connection: whether it said goodbye before.
    pub fn is_sent_away(&mut self) -> bool {
        let mut goodbye = false;
        while let Some(frame) = self.frame() {
            goodbye |= matches!(
                wire::decode_frame(&frame),
                Ok(Some(wire::Frame::Message(Message::Goodbye)))
            );
        }
        goodbye
    }
}

impl Raw {
    /// The other side of the handshake: a listener.
    pub fn accept(mut stream: TcpStream, key: &Secret) -> Self {
        stream.set_read_timeout(Some(LONG)).unwrap();
        let first = exactly(&mut stream, PREAMBLE).unwrap();
        let length = wire::decode_preamble(&first).unwrap().unwrap();
        let second = exactly(&mut stream, length).unwrap();
        let own = preamble(&hello(proto::Role::Control));
        stream.write_all(&own).unwrap();
        let transcript = [first, second, own].concat();
        let length = exactly(&mut stream, 4).unwrap();
        let length = u32::from_le_bytes(length.try_into().unwrap());
        exactly(&mut stream, length as usize).unwrap();
        let mac = key.prove(Role::Server, &transcript);
        stream.write_all(&proof(&mac)).unwrap();
        let purpose = [b"session\n", transcript.as_slice()].concat();
        Self {
            stream,
            hello: proto::Hello::default(),
            session_secret: Secret::new(key.prove(Role::Server, &purpose)).unwrap(),
            recorded: Vec::new(),
            input: Vec::new(),
        }
    }

    /// The control connection of a new pair.
    pub fn control(address: &Address) -> Self {
        let stream = dial(address);
        Self::open(stream, &hello_to(address, proto::Role::Control), &secret()).unwrap()
    }

    /// A further connection of this pair.
    pub fn further(
        &self,
        address: &Address,
        role: proto::Role,
        stripe: u32,
    ) -> Result<Self, String> {
        let hello = proto::Hello {
            session: self.hello.session,
            stripe,
            ..hello_to(address, role)
        };
        Self::open(dial(address), &hello, &self.session_secret)
    }

    pub fn stripe(&self, address: &Address, stripe: u32) -> Self {
        let role = proto::Role::StripeToListener;
        self.further(address, role, stripe).unwrap()
    }
}

/// The frame of an object, and what it costs.
pub fn object(number: u64, sizes: &[u64], shared: bool, inline: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let inline = [inline].into_iter();
    let shared: Option<&[_]> = shared.then_some(&[]);
    wire::encode_object(TransferId(number), 1, sizes, shared, inline, &mut frame);
    frame
}

/// The frame of an object that is in files that the receiver keeps.
pub fn kept_object(number: u64, sizes: &[u64], segments: &[Segment]) -> Vec<u8> {
    let mut frame = Vec::new();
    let none = std::iter::empty();
    wire::encode_object(
        TransferId(number),
        1,
        sizes,
        Some(segments),
        none,
        &mut frame,
    );
    frame
}

/// A frame around any payload, with the right checksum.
pub fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; FRAME_HEADER];
    frame[..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    frame[8] = kind;
    frame.extend_from_slice(payload);
    let checksum = crc32c(&frame[8..]);
    frame[4..8].copy_from_slice(&checksum.to_le_bytes());
    frame
}

/// An extent of an object's first region, with its bytes.
pub fn extent(object: u64, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let extent = Extent {
        object: TransferId(object),
        region: 0,
        offset,
        length: bytes.len() as u64,
    };
    let header = wire::encode_extent(&extent, Some(crc32c(bytes)));
    [&header, bytes].concat()
}

fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Why a pair ended, as soon as it did.
pub fn end_of(peer: &Peer) -> String {
    let start = Instant::now();
    loop {
        if let Some(end) = peer.ended() {
            return end.to_string();
        }
        assert!(start.elapsed() < LONG, "it goes on");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Reads what a listener still says to a connection that it closes.
pub fn last_words(stream: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return bytes,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return bytes,
            Err(error) => panic!("it was not closed: {error}"),
        }
    }
}
