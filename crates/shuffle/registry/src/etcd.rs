//! etcd, by its gRPC interface, version 3. Each server has a key, `PREFIX/NAME/INCARNATION`, with a lease: it goes when
//! the server does not keep that alive. So has a master, at `PREFIX/@masters/APPLICATION`, if it was the first.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status, Streaming};

use crate::credentials::Credentials;
use crate::driver::{Change, Node, Session as Driven};
use crate::entry::Key;
use crate::error::RegistryError;
use crate::location::Cluster;
use crate::machines::{Config, Failure};
use crate::master::{MASTERS, is_masters};
use crate::wire::escaped;

mod proto {
    #![allow(unreachable_pub, dead_code, clippy::all)]
    include!(concat!(env!("OUT_DIR"), "/etcdserverpb.rs"));
}

use proto::auth_client::AuthClient;
use proto::compare::{CompareTarget, TargetUnion};
use proto::event::EventType;
use proto::kv_client::KvClient;
use proto::lease_client::LeaseClient;
use proto::request_op::Request as Op;
use proto::response_op::Response as Done;
use proto::watch_client::WatchClient;
use proto::watch_request::RequestUnion;
use proto::{
    AuthenticateRequest, Compare, DeleteRangeRequest, LeaseGrantRequest, LeaseKeepAliveRequest,
    LeaseKeepAliveResponse, LeaseRevokeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
    WatchCreateRequest, WatchRequest, WatchResponse,
};

/// A claim may appear and go between requests so often.
const TRIES: usize = 5;
/// So many keys are read at once: they stay below the 4 MiB that a message may have.
const PAGE: i64 = 500;

/// What a session is begun with.
pub(crate) struct Target {
    endpoints: Vec<Endpoint>,
    prefix: String,
    user: Option<(String, String)>,
    session: Duration,
}

pub(crate) fn target(
    cluster: &Cluster,
    credentials: &Credentials,
    config: &Config,
) -> Result<Target, RegistryError> {
    let wrong = |error: tonic::transport::Error| RegistryError::Credentials(said(&error));
    let scheme = if cluster.tls { "https" } else { "http" };
    let mut endpoints = Vec::with_capacity(cluster.hosts.len());
    for host in &cluster.hosts {
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{host}"))
            .map_err(wrong)?
            .connect_timeout(config.answer);
        if cluster.tls {
            let authorities = credentials.required_authorities()?;
            let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authorities));
            if let Some((certificate, key)) = &credentials.identity {
                tls = tls.identity(Identity::from_pem(certificate, key));
            }
            endpoint = endpoint.tls_config(tls).map_err(wrong)?;
        }
        endpoints.push(endpoint);
    }
    Ok(Target {
        endpoints,
        prefix: cluster.path.clone(),
        user: credentials.user.clone(),
        session: config.session,
    })
}

pub(crate) struct Session {
    channel: Channel,
    token: Option<MetadataValue<Ascii>>,
    prefix: String,
    length: Duration,
    watch: Option<Tree>,
    lease: Option<Lease>,
}

/// The changes of the tree.
struct Tree {
    responses: Streaming<WatchResponse>,
    changes: VecDeque<Change>,
    /// Asks etcd whether it is there, and returns why it is not.
    watchdog: JoinSet<String>,
    /// The watch lives as long as its requests may come.
    _requests: mpsc::Sender<WatchRequest>,
}

struct Lease {
    id: i64,
    length: Duration,
    until: Instant,
    pause: Interval,
    requests: mpsc::Sender<LeaseKeepAliveRequest>,
    responses: Streaming<LeaseKeepAliveResponse>,
}

impl Session {
    fn request<T>(&self, message: T) -> Request<T> {
        request(&self.token, message)
    }

    /// The keys that begin so, with the revision at which they were read.
    async fn range(&self, start: String) -> Result<(Vec<Node>, i64), Failure> {
        let mut client = KvClient::new(self.channel.clone());
        let mut nodes = Vec::new();
        let end = after(start.as_bytes());
        let mut key = start.into_bytes();
        let mut revision = 0;
        loop {
            let range = RangeRequest {
                key,
                range_end: end.clone(),
                limit: PAGE,
                revision,
            };
            let page = client.range(self.request(range)).await.map_err(failure)?;
            let page = page.into_inner();
            if revision == 0 {
                revision = page.header.map_or(0, |header| header.revision);
            }
            key = page
                .kvs
                .last()
                .map_or_else(Vec::new, |last| [&last.key[..], &[0]].concat());
            nodes.extend(page.kvs.into_iter().map(|pair| Node {
                path: below(&self.prefix, &pair.key),
                bytes: Ok(pair.value),
            }));
            if !page.more || key.is_empty() {
                return Ok((nodes, revision));
            }
        }
    }

    fn key(&self, key: &Key) -> Vec<u8> {
        let (name, incarnation) = key.path();
        format!("{}/{name}/{incarnation}", self.prefix).into_bytes()
    }

    /// Writes a key if a comparison with it holds. Returns what it has otherwise: `None` within, if it is not there.
    async fn write_if(
        &mut self,
        key: &[u8],
        target: CompareTarget,
        with: TargetUnion,
        value: &[u8],
    ) -> Result<Result<(), Option<Vec<u8>>>, Failure> {
        let operation = |request| RequestOp {
            request: Some(request),
        };
        let put = PutRequest {
            key: key.to_vec(),
            value: value.to_vec(),
            lease: self.lease().await?,
        };
        let read = RangeRequest {
            key: key.to_vec(),
            ..RangeRequest::default()
        };
        let compare = Compare {
            target: target.into(),
            key: key.to_vec(),
            target_union: Some(with),
            ..Compare::default()
        };
        let transaction = TxnRequest {
            compare: vec![compare],
            success: vec![operation(Op::RequestPut(put))],
            failure: vec![operation(Op::RequestRange(read))],
        };
        let mut client = KvClient::new(self.channel.clone());
        let done = client.txn(self.request(transaction)).await;
        let done = done.map_err(failure)?.into_inner();
        if done.succeeded {
            return Ok(Ok(()));
        }
        let found = done.responses.into_iter().find_map(|op| match op.response {
            Some(Done::ResponseRange(range)) => range.kvs.into_iter().next(),
            _ => None,
        });
        Ok(Err(found.map(|pair| pair.value)))
    }

    /// The lease of this session.
    async fn lease(&mut self) -> Result<i64, Failure> {
        if let Some(lease) = &self.lease {
            return Ok(lease.id);
        }
        let mut client = LeaseClient::new(self.channel.clone());
        let grant = LeaseGrantRequest {
            ttl: self.length.as_secs().max(1) as i64,
        };
        let granted = client
            .lease_grant(self.request(grant))
            .await
            .map_err(failure)?;
        let id = granted.into_inner().id;
        let (requests, sent) = mpsc::channel(1);
        // The answer to the stream comes with the first message.
        let _ = requests.send(LeaseKeepAliveRequest { id }).await;
        let responses = client
            .lease_keep_alive(self.request(ReceiverStream::new(sent)))
            .await
            .map_err(failure)?;
        let mut pause = tokio::time::interval(self.length / 3);
        pause.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.lease = Some(Lease {
            id,
            length: self.length,
            until: Instant::now() + self.length,
            pause,
            requests,
            responses: responses.into_inner(),
        });
        Ok(id)
    }
}

/// Asks again and again, and returns when there is no answer. A watch by itself does not say that its member of the
/// cluster is cut off: a read that a majority confirms does. HTTP's own pings are no help either, since etcd ends a
/// connection that has more than one in five seconds.
async fn ask(
    channel: Channel,
    token: Option<MetadataValue<Ascii>>,
    key: Vec<u8>,
    limit: Duration,
) -> String {
    let mut client = KvClient::new(channel);
    loop {
        tokio::time::sleep(limit / 3).await;
        let range = RangeRequest {
            key: key.clone(),
            ..RangeRequest::default()
        };
        match tokio::time::timeout(limit * 2 / 3, client.range(request(&token, range))).await {
            Ok(Ok(_)) => {}
            Ok(Err(status)) => return failure(status).why,
            Err(_) => return "it does not answer".to_owned(),
        }
    }
}

fn request<T>(token: &Option<MetadataValue<Ascii>>, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(token) = token {
        request.metadata_mut().insert("token", token.clone());
    }
    request
}

impl Tree {
    async fn next(&mut self, prefix: &str) -> Change {
        loop {
            if let Some(change) = self.changes.pop_front() {
                return change;
            }
            let response = tokio::select! {
                response = self.responses.message() => match response {
                    Ok(Some(response)) => response,
                    Ok(None) => return Change::Ended("the watch has ended".into()),
                    Err(status) => return Change::Ended(failure(status).why),
                },
                Some(why) = self.watchdog.join_next() => {
                    return Change::Ended(why.unwrap_or_else(|error| error.to_string()));
                }
            };
            if response.canceled {
                let why = match response.compact_revision {
                    0 => response.cancel_reason,
                    _ => "the changes since the last list are compacted".into(),
                };
                return Change::Ended(format!("the watch has ended: {why}"));
            }
            for event in response.events {
                let kind = event.r#type();
                let Some(pair) = event.kv else { continue };
                let path = below(prefix, &pair.key);
                if is_masters(&path) {
                    continue;
                }
                self.changes.push_back(match kind {
                    EventType::Put => Change::Put(Node {
                        path,
                        bytes: Ok(pair.value),
                    }),
                    EventType::Delete => Change::Gone(path),
                });
            }
        }
    }
}

impl Lease {
    /// Keeps it alive, and returns when it is lost.
    async fn keep(&mut self) -> Change {
        loop {
            tokio::select! {
                _ = self.pause.tick() => {
                    // A request that waits is as good as another.
                    let _ = self.requests.try_send(LeaseKeepAliveRequest { id: self.id });
                }
                () = tokio::time::sleep_until(self.until) => {
                    return Change::Ended("the lease was not kept alive in time".into());
                }
                response = self.responses.message() => match response {
                    Ok(Some(response)) if response.ttl > 0 => self.until = Instant::now() + self.length,
                    Ok(Some(_)) => return Change::Ended("the lease has run out".into()),
                    Ok(None) => return Change::Ended("the lease is not kept alive any more".into()),
                    Err(status) => return Change::Ended(failure(status).why),
                },
            }
        }
    }
}

impl Driven for Session {
    type Target = Target;

    async fn connect(target: &Target) -> Result<Self, Failure> {
        let mut why = String::new();
        let mut connected = None;
        for endpoint in &target.endpoints {
            match endpoint.connect().await {
                Ok(channel) => {
                    connected = Some(channel);
                    break;
                }
                Err(error) => why = said(&error),
            }
        }
        let channel = connected.ok_or(Failure {
            why: format!("no host can be reached: {why}"),
            is_refusal: false,
        })?;
        let mut session = Self {
            channel,
            token: None,
            prefix: target.prefix.clone(),
            length: target.session,
            watch: None,
            lease: None,
        };
        if let Some((name, password)) = target.user.clone() {
            let mut client = AuthClient::new(session.channel.clone());
            let request = AuthenticateRequest { name, password };
            let answer = client.authenticate(Request::new(request)).await;
            let token = answer.map_err(failure)?.into_inner().token;
            session.token = token.parse().ok();
        }
        Ok(session)
    }

    async fn read(&mut self) -> Result<Vec<Node>, Failure> {
        let start = format!("{}/", self.prefix);
        let (mut nodes, revision) = self.range(start.clone()).await?;
        nodes.retain(|node| !is_masters(&node.path));
        let create = WatchCreateRequest {
            range_end: after(start.as_bytes()),
            key: start.into_bytes(),
            start_revision: revision + 1,
        };
        let (requests, sent) = mpsc::channel(1);
        let request_union = Some(RequestUnion::CreateRequest(create));
        let _ = requests.send(WatchRequest { request_union }).await;
        let mut client = WatchClient::new(self.channel.clone());
        let responses = client
            .watch(self.request(ReceiverStream::new(sent)))
            .await
            .map_err(failure)?;
        let mut watchdog = JoinSet::new();
        let key = self.prefix.clone().into_bytes();
        watchdog.spawn(ask(
            self.channel.clone(),
            self.token.clone(),
            key,
            self.length,
        ));
        self.watch = Some(Tree {
            responses: responses.into_inner(),
            changes: VecDeque::new(),
            watchdog,
            _requests: requests,
        });
        Ok(nodes)
    }

    async fn rivals(&mut self, name: &str) -> Result<Vec<Node>, Failure> {
        let folder = format!("{}/{}/", self.prefix, escaped(name));
        Ok(self.range(folder).await?.0)
    }

    async fn write(&mut self, key: &Key, value: Vec<u8>) -> Result<(), Failure> {
        let put = PutRequest {
            key: self.key(key),
            value,
            lease: self.lease().await?,
        };
        let mut client = KvClient::new(self.channel.clone());
        client.put(self.request(put)).await.map_err(failure)?;
        Ok(())
    }

    async fn remove(&mut self, key: &Key) -> Result<(), Failure> {
        let delete = DeleteRangeRequest { key: self.key(key) };
        let mut client = KvClient::new(self.channel.clone());
        client
            .delete_range(self.request(delete))
            .await
            .map_err(failure)?;
        Ok(())
    }

    async fn claim(&mut self, path: &str, bytes: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        let key = format!("{}/{path}", self.prefix).into_bytes();
        for _ in 0..TRIES {
            let absent = TargetUnion::CreateRevision(0);
            let written = self.write_if(&key, CompareTarget::Create, absent, bytes);
            match written.await? {
                Ok(()) => return Ok(None),
                Err(Some(other)) if other != bytes => return Ok(Some(other)),
                Err(None) => continue,
                Err(Some(_)) => {}
            }
            // It is ours, with this lease or with one that runs out.
            let ours = TargetUnion::Value(bytes.to_vec());
            let written = self.write_if(&key, CompareTarget::Value, ours, bytes);
            if written.await? == Ok(()) {
                return Ok(None);
            }
        }
        Err(Failure {
            why: format!("{path} changes as often as it is written"),
            is_refusal: false,
        })
    }

    async fn masters(&mut self) -> Result<Vec<Node>, Failure> {
        Ok(self.range(format!("{}/{MASTERS}/", self.prefix)).await?.0)
    }

    async fn next(&mut self) -> Change {
        match (&mut self.watch, &mut self.lease) {
            (Some(tree), _) => tree.next(&self.prefix).await,
            (None, Some(lease)) => lease.keep().await,
            (None, None) => std::future::pending().await,
        }
    }

    async fn close(self) {
        if let Some(lease) = &self.lease {
            let revoke = LeaseRevokeRequest { id: lease.id };
            let mut client = LeaseClient::new(self.channel.clone());
            // Otherwise it runs out.
            let _ = client.lease_revoke(self.request(revoke)).await;
        }
    }
}

/// A key below the prefix.
fn below(prefix: &str, key: &[u8]) -> String {
    let key = String::from_utf8_lossy(key);
    let below = key.strip_prefix(prefix).unwrap_or(&key);
    below.strip_prefix('/').unwrap_or(below).to_owned()
}

/// The first key that does not begin so.
fn after(start: &[u8]) -> Vec<u8> {
    let mut end = start.to_vec();
    while let Some(last) = end.pop() {
        if let Some(next) = last.checked_add(1) {
            end.push(next);
            break;
        }
    }
    end
}

fn failure(status: Status) -> Failure {
    let is_refusal = matches!(
        status.code(),
        Code::PermissionDenied | Code::InvalidArgument | Code::FailedPrecondition
    );
    let source = std::error::Error::source(&status).map(said);
    let message = match (status.message(), source) {
        ("", None) => status.code().to_string(),
        (message, None) => message.to_owned(),
        (message, Some(source)) => format!("{message}: {source}"),
    };
    let why = match is_refusal {
        true => format!("it refuses: {message}"),
        false => message,
    };
    Failure { why, is_refusal }
}

/// What an error says, with what is behind it.
fn said(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}
