//! ZooKeeper as a process.

use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
use treadle_shuffle_registry::{Credentials, Location};
use zookeeper_client::{Acls, Client, CreateMode, Error};

use crate::Kind;
use crate::certificates::Certificates;
use crate::process::{Process, free_port, place};

const PATH: &str = "/treadle/test";
/// So many nodes are written at once.
const AT_ONCE: usize = 256;

pub(crate) struct ZooKeeper {
    folder: TempDir,
    port: u16,
    tls: bool,
    process: Process,
}

impl ZooKeeper {
    fn run(folder: &Path, port: u16, certificates: Option<&Certificates>) -> Process {
        let settings = folder.join("zoo.cfg");
        let data = folder.join("data");
        let listens = match certificates {
            None => format!("clientPort={port}\nclientPortAddress=127.0.0.1\n"),
            Some(certificates) => secured(folder, port, certificates),
        };
        let text = format!(
            "dataDir={}\n{listens}tickTime=500\nmaxClientCnxns=0\nadmin.enableServer=false\n",
            data.display()
        );
        std::fs::write(&settings, text).expect("there is room");
        let jars = place("TREADLE_TEST_ZOOKEEPER").join("*");
        let mut process = Process::start(
            Command::new("java")
                .args(["-Xmx512m", "-Dzookeeper.forceSync=no", "-cp"])
                .arg(jars)
                .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
                .arg(&settings),
        );
        process.wait("ZooKeeper", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        process
    }

    fn begin(certificates: Option<&Certificates>) -> Self {
        let folder = tempfile::tempdir().expect("there is room");
        let port = free_port();
        let process = Self::run(folder.path(), port, certificates);
        Self {
            folder,
            port,
            tls: certificates.is_some(),
            process,
        }
    }

    /// Does something as somebody else would.
    fn with<T>(&self, user: Option<&str>, work: impl AsyncFnOnce(Client) -> T) -> T {
        let mut connector = Client::connector();
        if let Some(user) = user {
            connector = connector.with_auth("digest", user.as_bytes());
        }
        let hosts = format!("127.0.0.1:{}", self.port);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("there is a runtime").block_on(async move {
            let client = connector.connect(&hosts).await;
            work(client.expect("ZooKeeper is there")).await
        })
    }
}

/// The settings of a port with TLS. ZooKeeper wants a key and its certificate in one file.
fn secured(folder: &Path, port: u16, certificates: &Certificates) -> String {
    let read = |name| std::fs::read_to_string(certificates.file(name)).expect("it was made");
    let both = folder.join("both.pem");
    std::fs::write(&both, read("node-key.pem") + &read("node.pem")).expect("there is room");
    let (both, ca) = (both.display(), certificates.file("ca.pem"));
    format!(
        "secureClientPort={port}\nsecureClientPortAddress=127.0.0.1\nssl.clientAuth=need\n\
         serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
         ssl.keyStore.location={both}\nssl.keyStore.type=PEM\n\
         ssl.trustStore.location={}\nssl.trustStore.type=PEM\n\
         ssl.hostnameVerification=false\n",
        ca.display()
    )
}

impl Kind for ZooKeeper {
    fn start() -> Self {
        Self::begin(None)
    }

    fn start_with_tls(certificates: &Certificates) -> Self {
        Self::begin(Some(certificates))
    }

    fn location(&self, port: Option<u16>) -> Location {
        let port = port.unwrap_or(self.port);
        let tls = if self.tls { "+tls" } else { "" };
        let url = format!("zk{tls}://127.0.0.1:{port}{PATH}");
        url.parse().expect("a URL")
    }

    fn port(&self) -> u16 {
        self.port
    }

    fn kill(&mut self) {
        self.process.kill();
    }

    fn restart(&mut self, forgets: bool) {
        if forgets {
            std::fs::remove_dir_all(self.folder.path().join("data")).expect("it is there");
        }
        self.process = Self::run(self.folder.path(), self.port, None);
    }

    fn write(&self, nodes: &[(String, Vec<u8>)]) {
        self.with(None, async |client| {
            let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
            client.mkdir(PATH, &options).await.expect("a folder");
            for nodes in nodes.chunks(AT_ONCE) {
                let paths = nodes.iter().map(|(path, _)| format!("{PATH}/{path}"));
                let paths: Vec<String> = paths.collect();
                let folder =
                    |path: &String| path.rsplit_once('/').map_or("", |parts| parts.0).to_owned();
                let folders: Vec<String> = paths.iter().map(folder).collect();
                let made: Vec<_> = folders
                    .iter()
                    .map(|folder| client.create(folder, &[], &options))
                    .collect();
                for made in made {
                    assert!(matches!(made.await, Ok(_) | Err(Error::NodeExists)));
                }
                let written: Vec<_> = paths
                    .iter()
                    .zip(nodes)
                    .map(|(path, (_, bytes))| {
                        let created = client.create(path, bytes, &options);
                        (created, client.set_data(path, bytes, None))
                    })
                    .collect();
                for (created, set) in written {
                    assert!(matches!(created.await, Ok(_) | Err(Error::NodeExists)));
                    set.await.expect("it is there");
                }
            }
        });
    }

    fn protect(&self) -> [Credentials; 2] {
        self.with(Some("treadle:right"), async |client| {
            let options = CreateMode::Persistent.with_acls(Acls::creator_all());
            client.mkdir(PATH, &options).await.expect("a folder");
        });
        ["right", "mistaken"].map(|password| Credentials {
            user: Some(("treadle".to_owned(), password.to_owned())),
            ..Credentials::default()
        })
    }
}

crate::all_cases!(ZooKeeper);
