//! Pages over HTTP for those who watch a process: who has the token.
//!
//! The process says which pages there are ([`Page`]), and hands in one when it is asked for.
//!
//! `hyper` serves them in a runtime on one thread, which does nothing else. One request a connection,
//! read only, few at a time: what a browser, `curl` or Prometheus need. A connection has a limit in
//! time for each thing that it does, however slowly it does it.

mod access;
pub mod dashboard;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};
use treadle_reactor::thread::{self, caught, lock};
use treadle_security::secret;

use self::access::{Access, Wanted};

/// Requests with the token that are answered at a time; others are turned away.
const MOST: usize = 16;
/// Other connections at a time: those that have shown no token, and those whose answer was sent. The next one
/// takes the place of the oldest.
const MOST_STRANGERS: usize = 64;
/// Bytes of the longest head of a request.
const LONGEST: usize = 8 * 1024;
/// Headers of a request.
const HEADERS: usize = 64;
/// How long a connection may take until its answer is there, and then to read it.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long what a connection still says is read.
const FAREWELL: Duration = Duration::from_secs(1);
/// What a page may do in a browser: run and ask for what comes from here, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors ";
/// A browser may keep what stays the same, and asks whether it did.
const LASTS: &str = "private, no-cache";
/// What those hear who are turned away.
const BUSY: &str = "too many requests at a time\n";

/// Where pages are served, and who may see them.
#[derive(Clone)]
pub struct Options {
    /// Where they are served; port 0 takes a free one.
    pub address: SocketAddr,
    /// What lets in: characters that need no quoting in a URL. `None`: one is made at random.
    pub token: Option<String>,
    /// Host names by which they are asked for, beside `localhost`, addresses, and this machine's.
    pub names: Vec<String>,
}

impl Options {
    /// Pages at an address, for who learns the random token.
    pub fn at(address: SocketAddr) -> Self {
        Self {
            address,
            token: None,
            names: Vec::new(),
        }
    }
}

impl fmt::Debug for Options {
    /// Does not show the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("address", &self.address)
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

/// What those are told who get no page: what to do about it.
#[derive(Clone, Copy, Debug)]
pub struct Refusals {
    /// Without the token.
    pub unauthorized: &'static str,
    /// By a name that is none of this server's.
    pub foreign_host: &'static str,
    /// Nobody handed in the page in time.
    pub busy: &'static str,
}

/// What is sent.
#[derive(Clone, Debug)]
pub struct Content {
    /// Of HTTP.
    pub status: u16,
    /// The type, as in `Content-Type`.
    pub kind: &'static str,
    /// The body.
    pub bytes: Bytes,
    /// Whether it stays the same under this path: browsers may keep it.
    pub lasts: bool,
    /// Whether pages of others may show it in a frame. It must have nothing that a click could change.
    pub in_frames: bool,
}

impl Content {
    /// A page that is another one the next time.
    pub fn new(kind: &'static str, bytes: impl Into<Bytes>) -> Self {
        Self {
            status: 200,
            kind,
            bytes: bytes.into(),
            lasts: false,
            in_frames: false,
        }
    }
}

/// Makes a page, on the thread that sends it.
pub type Text = Box<dyn FnOnce() -> Content + Send>;

/// Hands in a page. Where it is dropped instead, the page is not to be had.
pub type Reply = Box<dyn FnOnce(Text) + Send>;

/// Asks for a page: with the query of the request, which may be empty, as it came. Must not block: the
/// reply may be handed in later, elsewhere.
pub type Ask = Box<dyn Fn(&str, Reply) + Send + Sync>;

/// A page of a process.
pub struct Page {
    /// Its path, which begins with a slash. That of `/` is also had under `/status`, in the place of the
    /// list of pages.
    pub path: &'static str,
    /// Whether it says nothing of the process: then no token is needed.
    pub is_open: bool,
    /// Somebody wants it.
    pub ask: Ask,
}

/// The server of pages. It ends when it is closed or dropped.
#[derive(Debug)]
pub struct PageServer {
    address: SocketAddr,
    link: String,
    /// That of the thread.
    process: u32,
    running: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

impl PageServer {
    /// Serves pages, on a thread of their own. `failed` is called if that ends in a panic, with what to
    /// say.
    ///
    /// # Errors
    /// When the port is taken, or the system has no more threads or descriptors.
    pub fn start(
        options: Options,
        pages: Vec<Page>,
        refusals: Refusals,
        failed: impl FnOnce(String) + Send + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(options.address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let token = options
            .token
            .unwrap_or_else(|| secret::hex(&secret::random::<16>()));
        let own_name = own_name();
        let link = link(address, own_name.as_deref(), &token);
        let mut names = options.names;
        names.extend(own_name);
        let paths: Vec<_> = pages.iter().map(|page| (page.path, page.is_open)).collect();
        let listed = paths.iter().filter(|(_, is_open)| !is_open);
        let listed: Vec<_> = listed.map(|(path, _)| *path).collect();
        let server = Arc::new(Server {
            index: format!("/health {}\n", listed.join(" ")),
            access: Access {
                token,
                names,
                bound: address.ip(),
                paths,
                refusals,
            },
            pages,
            places: Arc::new(Semaphore::new(MOST)),
            connections: Mutex::default(),
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let (stop, stopped) = oneshot::channel();
        let body = move || {
            let serve = async move {
                tokio::select! {
                    _ = stopped => {}
                    () = server.accept(listener) => {}
                }
            };
            // The connections end with the runtime.
            if let Err(reason) = caught(|| runtime.block_on(serve)) {
                failed(reason.to_string());
            }
        };
        let thread = thread::start("treadle-http", body)?;
        Ok(Self {
            address,
            link,
            process: std::process::id(),
            running: Mutex::new(Some((stop, thread))),
        })
    }

    /// Where it listens, with the port that it got.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where the pages are, with what lets in.
    pub fn link(&self) -> &str {
        &self.link
    }

    /// Ends it, with its connections.
    pub fn close(&self) {
        if self.process != std::process::id() {
            // A forked child has no such thread, shares the parent's descriptors, and who had a lock may be
            // none of its own.
            return;
        }
        let Some((stop, thread)) = lock(&self.running).take() else {
            return;
        };
        drop(stop);
        let _ = thread.join();
    }
}

/// Where people find the pages. Pages at all addresses of a machine are found by its name.
fn link(address: SocketAddr, own_name: Option<&str>, token: &str) -> String {
    match own_name {
        Some(name) if address.ip().is_unspecified() => {
            format!("http://{name}:{}/?token={token}", address.port())
        }
        _ => format!("http://{address}/?token={token}"),
    }
}

/// The name of this machine.
fn own_name() -> Option<String> {
    let system = rustix::system::uname();
    Some(system.nodename().to_str().ok()?.to_owned())
}

impl Drop for PageServer {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            self.close();
        } else {
            let running = self.running.get_mut();
            std::mem::forget(running.unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

type Answer = Response<Full<Bytes>>;

/// What connections share.
struct Server {
    access: Access,
    pages: Vec<Page>,
    /// The names of the pages.
    index: String,
    /// One for each request with the token.
    places: Arc<Semaphore>,
    connections: Mutex<Connections>,
}

/// Connections that are there, oldest first.
#[derive(Default)]
struct Connections {
    /// How many there have been.
    count: u64,
    open: VecDeque<Connection>,
}

struct Connection {
    number: u64,
    end: AbortHandle,
    /// While it is answered, and has shown the token.
    place: Option<OwnedSemaphorePermit>,
}

impl Connections {
    /// Makes room for one more.
    fn make_room(&mut self) {
        let is_stranger = |connection: &Connection| connection.place.is_none();
        let strangers = self.open.iter().filter(|one| is_stranger(one)).count();
        if strangers >= MOST_STRANGERS
            && let Some(oldest) = self.open.iter().position(is_stranger)
            && let Some(oldest) = self.open.remove(oldest)
        {
            oldest.end.abort();
        }
    }

    fn find(&mut self, number: u64) -> Option<&mut Connection> {
        self.open.iter_mut().find(|one| one.number == number)
    }
}

/// A connection that is there until this is dropped, however it ends.
struct Open {
    server: Arc<Server>,
    number: u64,
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut connections = lock(&self.server.connections);
        connections.open.retain(|one| one.number != self.number);
    }
}

impl Server {
    async fn accept(self: Arc<Self>, listener: tokio::net::TcpListener) {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                // Out of descriptors, for one: others may give some back.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            {
                let mut connections = lock(&self.connections);
                connections.make_room();
                connections.count += 1;
                let number = connections.count;
                let server = Arc::clone(&self);
                let open = Open { server, number };
                // A panic is the end of this connection only.
                let connection = tokio::spawn(async move {
                    open.server.converse(stream, number).await;
                });
                connections.open.push_back(Connection {
                    number,
                    end: connection.abort_handle(),
                    place: None,
                });
            }
            // It says what it has to say before others take its place.
            tokio::task::yield_now().await;
        }
    }

    /// A connection has shown the token: whether it has a place now, which nobody takes.
    fn has_place(&self, number: u64) -> bool {
        let place = Arc::clone(&self.places).try_acquire_owned().ok();
        let is_there = place.is_some();
        if let Some(connection) = lock(&self.connections).find(number) {
            connection.place = place;
        }
        is_there
    }

    /// Its answer was sent.
    fn was_answered(&self, number: u64) {
        if let Some(connection) = lock(&self.connections).find(number) {
            connection.place = None;
        }
    }

    /// Answers one request. A client that is gone, or too slow, gets no answer.
    async fn converse(&self, stream: TcpStream, number: u64) {
        let until = Instant::now() + PATIENCE;
        let Ok(local) = stream.local_addr() else {
            return;
        };
        let local = local.ip().to_canonical();
        let service = service_fn(|request| Box::pin(self.answer(request, local, until, number)));
        let mut connection = http1::Builder::new()
            .keep_alive(false)
            // Who has asked may say at once that nothing else comes.
            .half_close(true)
            .max_buf_size(LONGEST)
            .max_headers(HEADERS)
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE)
            .serve_connection(TokioIo::new(stream), service);
        let served = poll_fn(|context| connection.poll_without_shutdown(context));
        let served = timeout_at(until + PATIENCE, served).await;
        self.was_answered(number);
        if served.is_ok() {
            let stream = connection.into_parts().io.into_inner();
            let _ = timeout(FAREWELL, linger(stream)).await;
        }
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        local: IpAddr,
        until: Instant,
        number: u64,
    ) -> Result<Answer, Infallible> {
        let wanted = self.access.check(&request, local);
        let is_open = match wanted {
            Err(_) | Ok(Wanted::Health) => true,
            Ok(Wanted::Index) => false,
            Ok(Wanted::Page(page)) => self.pages[page].is_open,
        };
        if !is_open && !self.has_place(number) {
            return Ok(plain(StatusCode::SERVICE_UNAVAILABLE, BUSY));
        }
        Ok(match wanted {
            Err((status, text)) => plain(status, text),
            Ok(Wanted::Health) => plain(StatusCode::OK, "ok\n"),
            Ok(Wanted::Index) => plain(StatusCode::OK, self.index.clone()),
            Ok(Wanted::Page(page)) => {
                let query = request.uri().query().unwrap_or_default();
                self.page(&self.pages[page], query, until).await
            }
        })
    }

    async fn page(&self, page: &Page, query: &str, until: Instant) -> Answer {
        let (sender, text) = oneshot::channel::<Text>();
        // Whoever asked may be gone.
        (page.ask)(query, Box::new(|text| drop(sender.send(text))));
        match timeout_at(until, text).await {
            Ok(Ok(text)) => answer(text()),
            Ok(Err(_)) | Err(_) => {
                plain(StatusCode::SERVICE_UNAVAILABLE, self.access.refusals.busy)
            }
        }
    }
}

/// Reads what the client still says: closing with something unread would take the answer from it.
async fn linger(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown().await?;
    let mut rest = stream.take(16 * LONGEST as u64);
    tokio::io::copy(&mut rest, &mut tokio::io::sink()).await?;
    Ok(())
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    answer(Content {
        status: status.as_u16(),
        ..Content::new("text/plain; charset=utf-8", text)
    })
}

fn answer(content: Content) -> Answer {
    let status = StatusCode::from_u16(content.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let cache = if content.lasts { LASTS } else { "no-store" };
    let frames = if content.in_frames { "*" } else { "'self'" };
    let builder = Response::builder()
        .status(status)
        .header(header::CONTENT_TYPE, content.kind)
        .header(header::CACHE_CONTROL, cache)
        .header(header::CONTENT_SECURITY_POLICY, format!("{POLICY}{frames}"))
        // The address of a page holds the token: where links on it lead is not told.
        .header(header::REFERRER_POLICY, "no-referrer")
        .header(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    let builder = match status {
        StatusCode::UNAUTHORIZED => builder.header(header::WWW_AUTHENTICATE, "Bearer"),
        StatusCode::METHOD_NOT_ALLOWED => builder.header(header::ALLOW, "GET, HEAD"),
        StatusCode::SERVICE_UNAVAILABLE => builder.header(header::RETRY_AFTER, "1"),
        _ => builder,
    };
    let body = Full::new(content.bytes);
    builder.body(body).expect("all of it is known to be valid")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_touches_no_lock() {
        let refusals = Refusals {
            unauthorized: "",
            foreign_host: "",
            busy: "",
        };
        let options = Options::at(([127, 0, 0, 1], 0).into());
        let mut pages = PageServer::start(options, Vec::new(), refusals, drop).unwrap();
        pages.process += 1;
        let held = lock(&pages.running);
        pages.close();
        drop(held);
        let address = pages.address();
        drop(pages);
        // That of the parent goes on.
        assert!(std::net::TcpStream::connect(address).is_ok());
    }
}
