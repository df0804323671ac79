//! The first words.

use prost::Message as _;

use super::batch::{get_resources, put_resources};
use super::{PROTOCOL, WireError, proto};
use crate::message::{Data, Hello, Role, Welcome};

/// The contents of an object of kind [`HELLO`](super::HELLO).
pub fn encode_hello(hello: &Hello) -> Vec<u8> {
    encode_hello_of(PROTOCOL, hello)
}

/// As [`encode_hello`], of a node that speaks another protocol; for tests.
#[doc(hidden)]
pub fn encode_hello_of(protocol: u32, hello: &Hello) -> Vec<u8> {
    use proto::hello::Role as Kind;
    let role = match &hello.role {
        Role::Client => Kind::Client(proto::Nothing {}),
        Role::Sidecar => Kind::Sidecar(proto::Nothing {}),
        Role::Worker {
            address,
            host,
            threads,
            memory,
            resources,
        } => Kind::Worker(proto::WorkerRole {
            address: address.clone(),
            host: host.clone(),
            threads: *threads,
            memory: *memory,
            resources: put_resources(resources),
        }),
    };
    let hello = proto::Hello {
        protocol,
        name: hello.name.clone(),
        python: hello.python.clone(),
        version: hello.version.clone(),
        info: hello.info.clone(),
        role: Some(role),
    };
    hello.encode_to_vec()
}

/// The inverse of [`encode_hello`].
///
/// # Errors
/// For other bytes, and for a node that speaks another protocol.
pub fn decode_hello(bytes: &[u8]) -> Result<Hello, WireError> {
    use proto::hello::Role as Kind;
    let hello = proto::Hello::decode(bytes)?;
    if hello.protocol != PROTOCOL {
        return Err(WireError::Protocol {
            theirs: hello.protocol,
            ours: PROTOCOL,
        });
    }
    Ok(Hello {
        role: match hello.role.ok_or(WireError::Missing("role"))? {
            Kind::Client(_) => Role::Client,
            Kind::Sidecar(_) => Role::Sidecar,
            Kind::Worker(worker) => Role::Worker {
                address: worker.address,
                host: worker.host,
                threads: worker.threads,
                memory: worker.memory,
                resources: get_resources(worker.resources),
            },
        },
        name: hello.name,
        python: hello.python,
        version: hello.version,
        info: hello.info,
    })
}

/// The contents of an object of kind [`WELCOME`](super::WELCOME).
pub fn encode_welcome(welcome: &Welcome) -> Vec<u8> {
    use proto::welcome::Outcome;
    let outcome = match welcome {
        Welcome::Accepted { id, info } => Outcome::Accepted(proto::Accepted {
            id: *id,
            info: info.clone(),
        }),
        Welcome::Refused(reason) => Outcome::Refused(reason.clone()),
    };
    let welcome = proto::Welcome {
        outcome: Some(outcome),
    };
    welcome.encode_to_vec()
}

/// The inverse of [`encode_welcome`].
///
/// # Errors
/// For other bytes.
pub fn decode_welcome(bytes: &[u8]) -> Result<Welcome, WireError> {
    use proto::welcome::Outcome;
    let welcome = proto::Welcome::decode(bytes)?;
    Ok(
        match welcome.outcome.ok_or(WireError::Missing("outcome"))? {
            Outcome::Accepted(accepted) => Welcome::Accepted {
                id: accepted.id,
                info: accepted.info,
            },
            Outcome::Refused(reason) => Welcome::Refused(reason),
        },
    )
}

/// The frame of an object of kind [`Data::GET`].
pub fn encode_data(data: &Data) -> Vec<u8> {
    let Data::Get {
        request,
        worker,
        object,
    } = *data;
    let get = proto::Get {
        request,
        worker: worker.0,
        object,
    };
    get.encode_to_vec()
}

/// The inverse of [`encode_data`].
///
/// # Errors
/// For other bytes.
pub fn decode_data(bytes: &[u8]) -> Result<Data, WireError> {
    let get = proto::Get::decode(bytes)?;
    Ok(Data::Get {
        request: get.request,
        worker: treadle_types::WorkerId(get.worker),
        object: get.object,
    })
}
