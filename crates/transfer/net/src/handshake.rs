//! The first bytes of every connection: versions, purpose, and proof of the secret. No IO here.
//!
//! The schema is at the top of `proto/transfer.proto`. Neither side reads more than the next part,
//! so nothing is left over when the connection becomes what it is for.

use prost::Message as _;
use treadle_security::secret::{Role, Secret};

use crate::dialled::ClusterId;
use crate::wire::{self, PREAMBLE, WireError, proto};

/// Why there is no connection.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum HandshakeError {
    /// The bytes are not what the protocol says.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// The other side gave a reason.
    #[error("the peer refused the connection: {0}")]
    Refused(String),
    /// The proof is wrong.
    #[error(
        "the peer does not know this side's secret; give both sides the same: \
         secret=pathlib.Path(FILE), --secret-file FILE, or the environment variable \
         TREADLE_SECRET_FILE"
    )]
    Proof,
    /// One side proves a secret, the other has none.
    #[error("only one side has a secret; give secret=… to both, or to none of them (with TLS)")]
    OneSecret,
    /// The client dialled another address than the one at which it reached this listener.
    #[error(
        "{dialled} was dialled, and {reached} was reached: somebody passes the connection on. If \
         that is meant (a forwarded port, a container, a service), use TLS, or start the listener \
         with the address that is dialled (--contact-address, contact=…)"
    )]
    Relayed {
        /// What the client says.
        dialled: String,
        /// What the socket says.
        reached: String,
    },
    /// The client wants a listener of another cluster.
    #[error(
        "this is another cluster: {wanted} was meant, and {} was reached; the address is that of a \
         cluster that has ended",
        .reached.map_or_else(|| "a listener of none".to_owned(), |id| id.to_string())
    )]
    Cluster {
        /// The one that the client wants.
        wanted: ClusterId,
        /// The one that the listener belongs to.
        reached: Option<ClusterId>,
    },
    /// The connection ended in the middle.
    #[error("the peer closed the connection during the handshake{0}")]
    Closed(&'static str),
    /// One side refuses the other's certificate, or does not speak TLS.
    #[error("{0}")]
    Tls(String),
    /// A socket call failed.
    #[error("{0}")]
    Connect(String),
    /// It took too long.
    #[error("the handshake was not complete within {0:.1} s")]
    Timeout(f64),
}

impl HandshakeError {
    /// Whether nobody answered. Otherwise somebody did, and one side does not want the other.
    #[must_use]
    pub fn is_unanswered(&self) -> bool {
        matches!(self, Self::Closed(_) | Self::Connect(_))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Preamble,
    Hello(usize),
    /// The listener waits for `answer` or `refuse`.
    Asked,
    ProofLength,
    Proof(usize),
    Done,
}

/// What a step of the handshake came to.
#[derive(Debug)]
pub(crate) enum Step {
    /// More bytes are needed.
    Pending,
    /// Listener: the client has said hello, see `peer`; call `answer` or `refuse`.
    Asked,
    /// Both sides proved what they had to: the connection is open once the output is written.
    Done,
}

/// One side's part of a handshake.
#[derive(Debug)]
pub(crate) struct Handshake {
    client: bool,
    stage: Stage,
    key: Option<Secret>,
    /// Client's preamble and `Hello`, then the listener's, then what identifies the channel.
    transcript: Vec<u8>,
    channel: Option<[u8; 32]>,
    peer: proto::Hello,
    input: Vec<u8>,
    refused: bool,
    /// Bytes to write.
    pub(crate) output: Vec<u8>,
}

impl Handshake {
    /// The side that connects. Without a key, TLS must have shown who the listener is.
    pub(crate) fn client(mut hello: proto::Hello, key: Option<Secret>) -> Self {
        let mut handshake = Self::new(true);
        hello.proves = key.is_some();
        handshake.key = key;
        wire::encode_preamble(&hello.encode_to_vec(), &mut handshake.output);
        handshake.transcript.clone_from(&handshake.output);
        handshake
    }

    /// The side that accepts.
    pub(crate) fn listener() -> Self {
        Self::new(false)
    }

    fn new(client: bool) -> Self {
        Self {
            client,
            stage: Stage::Preamble,
            key: None,
            transcript: Vec::new(),
            channel: None,
            peer: proto::Hello::default(),
            input: Vec::new(),
            refused: false,
            output: Vec::new(),
        }
    }

    /// What identifies the channel, where something does: the proofs hold for no other. To be said
    /// before the first `advance`.
    pub(crate) fn bind(&mut self, channel: Option<[u8; 32]>) {
        self.channel = channel;
    }

    /// How many bytes to read next; 0 while there is something else to do.
    pub(crate) fn wanted(&self) -> usize {
        let part = match self.stage {
            Stage::Preamble => PREAMBLE,
            Stage::Hello(length) | Stage::Proof(length) => length,
            Stage::ProofLength => 4,
            Stage::Asked | Stage::Done => 0,
        };
        part - self.input.len().min(part)
    }

    /// Takes bytes, at most `wanted` of them.
    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        debug_assert!(bytes.len() <= self.wanted());
        self.input.extend_from_slice(bytes);
    }

    /// Goes as far as the bytes allow.
    pub(crate) fn advance(&mut self) -> Result<Step, HandshakeError> {
        loop {
            if self.stage == Stage::Preamble {
                // Strangers are sent away at their first byte.
                match wire::decode_preamble(&self.input) {
                    Ok(Some(length)) => {
                        let bytes = std::mem::take(&mut self.input);
                        self.transcript.extend_from_slice(&bytes);
                        self.stage = Stage::Hello(length);
                        continue;
                    }
                    Ok(None) => return Ok(Step::Pending),
                    Err(error) => {
                        // A client of another version learns this side's from the preamble.
                        if !self.client && matches!(error, WireError::Version(_)) {
                            wire::encode_preamble(&[], &mut self.output);
                        }
                        return Err(error.into());
                    }
                }
            }
            if self.wanted() > 0 {
                return Ok(Step::Pending);
            }
            let bytes = std::mem::take(&mut self.input);
            match self.stage {
                Stage::Hello(_) => {
                    self.peer = wire::decode_hello(&bytes)?;
                    self.transcript.extend_from_slice(&bytes);
                    if !self.client {
                        self.stage = Stage::Asked;
                        return Ok(Step::Asked);
                    }
                    self.transcript.extend(self.channel.into_iter().flatten());
                    self.stage = Stage::ProofLength;
                    if self.peer.proves == self.key.is_some() {
                        self.prove();
                    }
                    // Otherwise the listener, which sees the same, says why it refuses.
                }
                Stage::ProofLength => {
                    let length = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
                    if length as usize > wire::MAX_HELLO {
                        return Err(HandshakeError::Wire(WireError::Length {
                            length: length.into(),
                            limit: wire::MAX_HELLO as u64,
                        }));
                    }
                    self.stage = Stage::Proof(length as usize);
                }
                Stage::Proof(_) => {
                    let proof: proto::Proof = wire::decode_hello(&bytes)?;
                    self.verify(proof)?;
                    if !self.client {
                        self.prove();
                    }
                    self.stage = Stage::Done;
                    return Ok(Step::Done);
                }
                Stage::Preamble | Stage::Asked | Stage::Done => return Ok(Step::Pending),
            }
        }
    }

    /// Listener: says hello, and wants proof of `key`, if there is one.
    pub(crate) fn answer(&mut self, mut hello: proto::Hello, key: Option<Secret>) {
        debug_assert_eq!(self.stage, Stage::Asked);
        hello.proves = key.is_some();
        self.key = key;
        let start = self.output.len();
        wire::encode_preamble(&hello.encode_to_vec(), &mut self.output);
        self.transcript.extend_from_slice(&self.output[start..]);
        self.transcript.extend(self.channel.into_iter().flatten());
        if self.peer.proves == self.key.is_some() {
            self.stage = Stage::ProofLength;
        } else {
            self.refuse(&HandshakeError::OneSecret.to_string());
        }
    }

    /// Listener: ends the handshake with a reason that the client is told.
    pub(crate) fn refuse(&mut self, reason: &str) {
        if self.output.is_empty() && self.stage == Stage::Asked {
            wire::encode_preamble(&proto::Hello::default().encode_to_vec(), &mut self.output);
        }
        self.send(&proto::Proof {
            mac: Vec::new(),
            refused: reason.to_owned(),
        });
        self.stage = Stage::Done;
        self.refused = true;
    }

    /// Whether this side refused.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused
    }

    /// What the other side said.
    pub(crate) fn peer(&self) -> &proto::Hello {
        &self.peer
    }

    /// A secret of this connection alone, which both sides can compute.
    pub(crate) fn session_secret(&self) -> Secret {
        // Without a secret there is TLS, and then nobody else knows the channel.
        let key = self
            .key
            .clone()
            .unwrap_or_else(|| Secret::new([0; 32]).expect("its length is allowed"));
        let mut purpose = b"session\n".to_vec();
        purpose.extend_from_slice(&self.transcript);
        Secret::new(key.prove(Role::Server, &purpose)).expect("a proof is long enough")
    }

    fn role(&self) -> Role {
        if self.client {
            Role::Client
        } else {
            Role::Server
        }
    }

    fn prove(&mut self) {
        let mac = match &self.key {
            Some(key) => key.prove(self.role(), &self.transcript).to_vec(),
            None => Vec::new(),
        };
        self.send(&proto::Proof {
            mac,
            refused: String::new(),
        });
    }

    fn send(&mut self, proof: &proto::Proof) {
        let bytes = proof.encode_to_vec();
        self.output
            .extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        self.output.extend_from_slice(&bytes);
    }

    fn verify(&mut self, proof: proto::Proof) -> Result<(), HandshakeError> {
        if !proof.refused.is_empty() {
            return Err(HandshakeError::Refused(proof.refused));
        }
        let other = if self.client {
            Role::Server
        } else {
            Role::Client
        };
        let proved = match &self.key {
            Some(key) => key.verify(other, &self.transcript, &proof.mac),
            None => proof.mac.is_empty(),
        };
        if proved {
            return Ok(());
        }
        if !self.client {
            self.refuse(
                "its secret is another one; give both sides the same: secret=pathlib.Path(FILE), \
                 --secret-file FILE, or the environment variable TREADLE_SECRET_FILE",
            );
        }
        Err(HandshakeError::Proof)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use treadle_security::secret::random;

    fn hello() -> proto::Hello {
        proto::Hello {
            nonce: random::<32>().to_vec(),
            ..Default::default()
        }
    }

    fn deliver(
        from: &mut Handshake,
        to: &mut Handshake,
        piece: usize,
    ) -> Result<Step, HandshakeError> {
        let mut last = Step::Pending;
        while !from.output.is_empty() {
            let length = to.wanted().min(piece).min(from.output.len());
            if length == 0 {
                break;
            }
            let bytes: Vec<u8> = from.output.drain(..length).collect();
            to.receive(&bytes);
            match to.advance()? {
                Step::Pending => {}
                Step::Asked => return Ok(Step::Asked),
                Step::Done => last = Step::Done,
            }
        }
        Ok(last)
    }

    /// Runs both sides; returns what each ended with.
    fn run(
        client_key: Option<Secret>,
        listener_key: Option<Secret>,
        piece: usize,
    ) -> (
        Result<Secret, HandshakeError>,
        Result<Secret, HandshakeError>,
    ) {
        run_over([None; 2], client_key, listener_key, piece)
    }

    /// The same over channels of TLS.
    fn run_over(
        channels: [Option<[u8; 32]>; 2],
        client_key: Option<Secret>,
        listener_key: Option<Secret>,
        piece: usize,
    ) -> (
        Result<Secret, HandshakeError>,
        Result<Secret, HandshakeError>,
    ) {
        let mut client = Handshake::client(hello(), client_key);
        let mut listener = Handshake::listener();
        client.bind(channels[0]);
        listener.bind(channels[1]);
        assert!(matches!(
            deliver(&mut client, &mut listener, piece),
            Ok(Step::Asked)
        ));
        listener.answer(hello(), listener_key);
        let mut client_end = deliver(&mut listener, &mut client, piece);
        let listener_end = deliver(&mut client, &mut listener, piece);
        if matches!(client_end, Ok(Step::Pending)) {
            client_end = deliver(&mut listener, &mut client, piece);
        }
        let end = |side: &Handshake, step: Result<Step, HandshakeError>| match step {
            Ok(Step::Done) => Ok(side.session_secret()),
            Ok(_) => Err(HandshakeError::Closed("")),
            Err(error) => Err(error),
        };
        (end(&client, client_end), end(&listener, listener_end))
    }

    fn secret(byte: u8) -> Option<Secret> {
        Some(Secret::new([byte; 32]).unwrap())
    }

    #[test]
    fn the_same_secret_opens_and_gives_the_same_session() {
        for key in [secret(1), None] {
            for piece in [1, 7, 1000] {
                let (client, listener) = run(key.clone(), key.clone(), piece);
                let proof = client.unwrap().prove(Role::Client, b"x");
                assert!(listener.unwrap().verify(Role::Client, b"x", &proof));
            }
        }
    }

    #[test]
    fn another_secret_is_refused_and_both_know_why() {
        let (client, listener) = run(secret(1), secret(2), 1000);
        assert_eq!(listener.unwrap_err(), HandshakeError::Proof);
        let HandshakeError::Refused(reason) = client.unwrap_err() else {
            panic!("not refused")
        };
        assert!(reason.contains("TREADLE_SECRET_FILE"), "{reason}");
    }

    /// Somebody with a certificate and no secret is at the end of both channels.
    #[test]
    fn a_proof_holds_for_one_channel() {
        let (client, listener) = run_over([Some([1; 32]); 2], secret(1), secret(1), 1000);
        let proof = client.unwrap().prove(Role::Client, b"x");
        assert!(listener.unwrap().verify(Role::Client, b"x", &proof));
        for other in [None, Some([2; 32])] {
            let channels = [Some([1; 32]), other];
            let (client, listener) = run_over(channels, secret(1), secret(1), 1000);
            assert_eq!(listener.unwrap_err(), HandshakeError::Proof);
            client.unwrap_err();
        }
    }

    #[test]
    fn one_secret_of_two_is_refused() {
        for (client, listener) in [(secret(1), None), (None, secret(1))] {
            let (client, _) = run(client, listener, 1000);
            let reason = client.unwrap_err().to_string();
            assert!(reason.contains("only one side"), "{reason}");
        }
    }

    #[test]
    fn another_version_is_named_on_both_sides() {
        let theirs = format!("9.{}", wire::VERSION.minor);
        let mut client = Handshake::client(hello(), secret(1));
        client.output[8] = 9;
        let mut listener = Handshake::listener();
        let error = deliver(&mut client, &mut listener, 1000).unwrap_err();
        assert!(error.to_string().contains(&theirs), "{error}");
        listener.output[8] = 9;
        let error = deliver(&mut listener, &mut client, 1000).unwrap_err();
        assert!(error.to_string().contains(&theirs), "{error}");
    }

    #[test]
    fn a_recorded_proof_is_worth_nothing() {
        let mut client = Handshake::client(hello(), secret(1));
        let recorded = client.output.clone();
        let mut listener = Handshake::listener();
        deliver(&mut client, &mut listener, 1000).unwrap();
        listener.answer(hello(), secret(1));
        deliver(&mut listener, &mut client, 1000).unwrap();
        let proof = client.output.clone();
        deliver(&mut client, &mut listener, 1000).unwrap();

        let mut again = Handshake::listener();
        let mut thief = Handshake::client(hello(), None);
        thief.output = recorded;
        deliver(&mut thief, &mut again, 1000).unwrap();
        again.answer(hello(), secret(1));
        thief.output = proof;
        assert_eq!(
            deliver(&mut thief, &mut again, 1000).unwrap_err(),
            HandshakeError::Proof
        );
    }
}
