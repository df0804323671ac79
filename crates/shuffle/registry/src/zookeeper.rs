//! ZooKeeper. Each server has an ephemeral node, `PATH/NAME/INCARNATION`: it goes with the server's session. `NAME`
//! is a container: ZooKeeper removes it some time after its last node. A master has `PATH/@masters/APPLICATION`, if it
//! was the first.
//!
//! The client reconnects by itself, and keeps a server's session as long as that is possible.

use std::collections::VecDeque;

use zookeeper_client::{
    Acls, AddWatchMode, Client, Connector, CreateMode, Error, EventType, MultiWriteError,
    PersistentWatcher, SessionState, StateWatcher, TlsOptions, WatchedEvent,
};

use crate::credentials::Credentials;
use crate::driver::{Change, Node, Session as Driven};
use crate::entry::Key;
use crate::error::RegistryError;
use crate::location::Cluster;
use crate::machines::{Config, Failure};
use crate::master::{MASTERS, is_masters};
use crate::wire::escaped;

/// So many requests are under way at once while a list is read.
const AT_ONCE: usize = 256;
/// A node may appear and go between requests so often.
const TRIES: usize = 5;

/// What a session is begun with.
pub(crate) struct Target {
    connector: Connector,
    hosts: String,
    path: String,
    tls: bool,
    /// Nodes belong to the user, if there is one.
    has_user: bool,
}

pub(crate) fn target(
    cluster: &Cluster,
    credentials: &Credentials,
    config: &Config,
) -> Result<Target, RegistryError> {
    let wrong = |error: Error| RegistryError::Credentials(error.to_string());
    let mut connector = Client::connector()
        .with_session_timeout(config.session)
        .with_fail_eagerly();
    if let Some((user, password)) = &credentials.user {
        connector = connector.with_auth("digest", format!("{user}:{password}").as_bytes());
    }
    if cluster.tls {
        let authorities = credentials.required_authorities()?;
        let mut options = TlsOptions::new().with_pem_ca(authorities).map_err(wrong)?;
        if let Some((certificate, key)) = &credentials.identity {
            options = options.with_pem_identity(certificate, key).map_err(wrong)?;
        }
        connector = connector.with_tls(options);
    }
    Ok(Target {
        connector,
        hosts: cluster.hosts.join(","),
        path: cluster.path.clone(),
        tls: cluster.tls,
        has_user: credentials.user.is_some(),
    })
}

pub(crate) struct Session {
    client: Client,
    path: String,
    has_user: bool,
    states: StateWatcher,
    tree: Option<PersistentWatcher>,
    /// Events of the tree whose nodes have not been read.
    events: VecDeque<WatchedEvent>,
    /// The node has been written in this session.
    is_written: bool,
}

impl Session {
    fn acls(&self) -> Acls<'static> {
        match self.has_user {
            true => Acls::creator_all(),
            false => Acls::anyone_all(),
        }
    }

    fn node(&self, key: &Key) -> String {
        let (name, incarnation) = key.path();
        format!("{}/{name}/{incarnation}", self.path)
    }

    /// A path below ours.
    fn below<'a>(&self, path: &'a str) -> Option<&'a str> {
        path.strip_prefix(&self.path)?.strip_prefix('/')
    }

    fn failed(&self, error: Error) -> Failure {
        failure(&self.path, error)
    }

    /// Makes the folder of a node.
    async fn make(&self, folder: &str) -> Result<(), Failure> {
        let persistent = CreateMode::Persistent.with_acls(self.acls());
        let base = self.client.mkdir(&self.path, &persistent).await;
        base.map_err(|error| self.failed(error))?;
        let container = CreateMode::Container.with_acls(self.acls());
        match self.client.create(folder, &[], &container).await {
            Ok(_) | Err(Error::NodeExists | Error::NoNode) => Ok(()),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Has a node belong to this session that another one has. `false`: it has changed meanwhile.
    async fn take_over(&self, node: &str, version: i32, bytes: &[u8]) -> Result<bool, Failure> {
        let acls = self.acls();
        let options = CreateMode::Ephemeral.with_acls(acls);
        let mut both = self.client.new_multi_writer();
        let added = both.add_delete(node, Some(version));
        let added = added.and_then(|()| both.add_create(node, bytes, &options));
        added.map_err(|error| self.failed(error))?;
        match both.commit().await {
            Ok(_) => Ok(true),
            Err(MultiWriteError::OperationFailed { .. }) => Ok(false),
            Err(MultiWriteError::RequestFailed { source }) => Err(self.failed(source)),
        }
    }

    /// The children of paths; none of those that are not there.
    async fn children(&self, paths: &[String]) -> Result<Vec<Vec<String>>, Failure> {
        let mut all = Vec::with_capacity(paths.len());
        for paths in paths.chunks(AT_ONCE) {
            // Each request is sent when it is made.
            let requests: Vec<_> = paths
                .iter()
                .map(|path| self.client.list_children(path))
                .collect();
            for request in requests {
                all.push(match request.await {
                    Ok(children) => children,
                    Err(Error::NoNode) => Vec::new(),
                    Err(error) => return Err(self.failed(error)),
                });
            }
        }
        Ok(all)
    }

    /// The nodes with these paths, without those that are gone.
    async fn nodes(&self, paths: &[String]) -> Result<Vec<Node>, Failure> {
        let mut nodes = Vec::with_capacity(paths.len());
        for paths in paths.chunks(AT_ONCE) {
            let requests: Vec<_> = paths
                .iter()
                .map(|path| self.client.get_data(path))
                .collect();
            for (path, request) in paths.iter().zip(requests) {
                let path = self.below(path).unwrap_or_default().to_owned();
                let bytes = match request.await {
                    Ok((bytes, _)) => Ok(bytes),
                    Err(Error::NoNode) => continue,
                    // One node may have other rights than the rest.
                    Err(Error::NoAuth) => Err("the registry does not let us read it".to_owned()),
                    Err(error) => return Err(self.failed(error)),
                };
                nodes.push(Node { path, bytes });
            }
        }
        Ok(nodes)
    }

    /// What the first event of the tree says, if it says anything.
    async fn take_event(&mut self) -> Option<Change> {
        let event = self.events.front()?;
        let path = self.below(&event.path).unwrap_or_default().to_owned();
        let is_entry = path.split('/').count() == 2 && !is_masters(&path);
        let change = match event.event_type {
            EventType::NodeDeleted if is_entry => Some(Change::Gone(path)),
            EventType::NodeCreated | EventType::NodeDataChanged if is_entry => {
                let paths = [event.path.clone()];
                match self.nodes(&paths).await {
                    // A node that is gone has another event.
                    Ok(mut nodes) => nodes.pop().map(Change::Put),
                    Err(failure) => Some(Change::Ended(failure.why)),
                }
            }
            _ => None,
        };
        self.events.pop_front();
        change
    }
}

impl Driven for Session {
    type Target = Target;

    async fn connect(target: &Target) -> Result<Self, Failure> {
        let connector = target.connector.clone();
        let connected = match target.tls {
            true => connector.secure_connect(&target.hosts).await,
            false => connector.connect(&target.hosts).await,
        };
        let client = connected.map_err(|error| failure(&target.path, error))?;
        Ok(Self {
            states: client.state_watcher(),
            client,
            path: target.path.clone(),
            has_user: target.has_user,
            tree: None,
            events: VecDeque::new(),
            is_written: false,
        })
    }

    async fn read(&mut self) -> Result<Vec<Node>, Failure> {
        self.events.clear();
        if self.tree.is_none() {
            let mode = AddWatchMode::PersistentRecursive;
            let tree = self.client.watch(&self.path, mode).await;
            self.tree = Some(tree.map_err(|error| self.failed(error))?);
        }
        let names = self.children(std::slice::from_ref(&self.path)).await?;
        let names = names.into_iter().flatten();
        let names = names.filter(|name| !is_masters(name));
        let names: Vec<_> = names.map(|name| format!("{}/{name}", self.path)).collect();
        let children = self.children(&names).await?;
        let mut paths = Vec::with_capacity(names.len());
        let mut empty = Vec::new();
        for (name, children) in names.into_iter().zip(children) {
            if children.is_empty() {
                empty.push(name.clone());
            }
            paths.extend(children.into_iter().map(|child| format!("{name}/{child}")));
        }
        let mut nodes = self.nodes(&paths).await?;
        // A container is empty for a while. What else is there is not ours, and is named.
        let foreign = self.nodes(&empty).await?.into_iter();
        nodes.extend(
            foreign.filter(|node| node.bytes.as_ref().is_ok_and(|bytes| !bytes.is_empty())),
        );
        Ok(nodes)
    }

    async fn rivals(&mut self, name: &str) -> Result<Vec<Node>, Failure> {
        let folder = [format!("{}/{}", self.path, escaped(name))];
        let children = self.children(&folder).await?.into_iter().flatten();
        let paths: Vec<_> = children
            .map(|child| format!("{}/{child}", folder[0]))
            .collect();
        self.nodes(&paths).await
    }

    async fn write(&mut self, key: &Key, bytes: Vec<u8>) -> Result<(), Failure> {
        let node = self.node(key);
        let folder = node.rsplit_once('/').map_or("", |(folder, _)| folder);
        for _ in 0..TRIES {
            if self.is_written {
                match self.client.set_data(&node, &bytes, None).await {
                    Ok(_) => return Ok(()),
                    Err(Error::NoNode) => self.is_written = false,
                    Err(error) => return Err(self.failed(error)),
                }
            }
            let options = CreateMode::Ephemeral.with_acls(self.acls());
            match self.client.create(&node, &bytes, &options).await {
                Ok(_) => {
                    self.is_written = true;
                    return Ok(());
                }
                // It is of a session of ours that ends soon: it would go with that.
                Err(Error::NodeExists) => self.remove(key).await?,
                Err(Error::NoNode) => self.make(folder).await?,
                Err(error) => return Err(self.failed(error)),
            }
        }
        Err(Failure {
            why: format!("{node} is removed as often as it is written"),
            is_refusal: false,
        })
    }

    async fn remove(&mut self, key: &Key) -> Result<(), Failure> {
        match self.client.delete(&self.node(key), None).await {
            Ok(()) | Err(Error::NoNode) => Ok(()),
            Err(error) => Err(self.failed(error)),
        }
    }

    async fn claim(&mut self, path: &str, bytes: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        let node = format!("{}/{path}", self.path);
        for _ in 0..TRIES {
            let options = CreateMode::Ephemeral.with_acls(self.acls());
            match self.client.create(&node, bytes, &options).await {
                Ok(_) => return Ok(None),
                Err(Error::NodeExists) => {}
                Err(Error::NoNode) => {
                    self.make(&format!("{}/{MASTERS}", self.path)).await?;
                    continue;
                }
                Err(error) => return Err(self.failed(error)),
            }
            let (there, stat) = match self.client.get_data(&node).await {
                Ok(found) => found,
                Err(Error::NoNode) => continue,
                Err(error) => return Err(self.failed(error)),
            };
            if there != bytes {
                return Ok(Some(there));
            }
            // It is ours: of this session, or of one that ends soon.
            if stat.ephemeral_owner == self.client.session_id().0
                || self.take_over(&node, stat.version, bytes).await?
            {
                return Ok(None);
            }
        }
        Err(Failure {
            why: format!("{node} changes as often as it is written"),
            is_refusal: false,
        })
    }

    async fn masters(&mut self) -> Result<Vec<Node>, Failure> {
        let folder = format!("{}/{MASTERS}", self.path);
        let names = self.children(std::slice::from_ref(&folder)).await?;
        let names = names.into_iter().flatten();
        let paths: Vec<_> = names.map(|name| format!("{folder}/{name}")).collect();
        self.nodes(&paths).await
    }

    async fn next(&mut self) -> Change {
        loop {
            if let Some(change) = self.take_event().await {
                return change;
            }
            if !self.events.is_empty() {
                continue;
            }
            let tree = async {
                match &mut self.tree {
                    Some(tree) => tree.changed().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                state = self.states.changed() => {
                    self.events.clear();
                    return match state {
                        // A watch that is set again with a new connection has missed changes (ZOOKEEPER-4698),
                        // and in our tests missed later ones, too: a master begins anew.
                        SessionState::Disconnected | SessionState::SyncConnected
                            if self.tree.is_some() =>
                        {
                            Change::Ended("the connection is lost".into())
                        }
                        SessionState::SyncConnected | SessionState::ConnectedReadOnly => Change::Resumed,
                        SessionState::Disconnected => Change::Interrupted("the connection is lost".into()),
                        state => {
                            self.tree = None;
                            Change::Ended(format!("the session is over: {state}"))
                        }
                    };
                }
                event = tree => match event.event_type {
                    // The states have it, too.
                    EventType::Session if event.session_state.is_terminated() => self.tree = None,
                    EventType::Session => {}
                    _ => self.events.push_back(event),
                },
            }
        }
    }

    /// The session is closed when its last client is dropped.
    async fn close(self) {}
}

fn failure(path: &str, error: Error) -> Failure {
    let (why, is_refusal) = match error {
        Error::NoAuth => (
            format!("the user and password do not give the rights that {path} needs"),
            true,
        ),
        Error::AuthFailed => ("it refuses the user and password".to_owned(), true),
        Error::NoHosts => ("no host can be reached".to_owned(), false),
        error => (error.to_string(), false),
    };
    Failure { why, is_refusal }
}
