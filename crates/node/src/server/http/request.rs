//! What a request asks for, and whether it may.

use std::fmt;
use std::net::IpAddr;

use treadle_net::secret;

use super::Page;

/// The longest request.
pub(super) const LONGEST: usize = 8 * 1024;

/// What is sent back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    /// Whether the server is there: nothing of the cluster, so anybody may know.
    Health,
    /// The names of the pages.
    Index,
    /// A page that the scheduler's thread writes.
    Page(Page),
}

/// A request that may be answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Request {
    pub(super) wanted: Wanted,
    /// Whether only the head of the answer is wanted.
    pub(super) is_head: bool,
}

/// Why a request is not answered.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Refusal {
    pub(super) status: u16,
    pub(super) text: String,
}

fn refused<T>(status: u16, text: impl Into<String>) -> Result<T, Refusal> {
    let text = text.into();
    Err(Refusal { status, text })
}

/// Who may see the pages, and by which names.
pub(super) struct Gate {
    token: String,
    /// Host names beside `localhost` and addresses.
    names: Vec<String>,
    /// Where the server listens.
    bound: IpAddr,
}

impl fmt::Debug for Gate {
    /// Does not show the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

impl Gate {
    pub(super) fn new(token: String, names: Vec<String>, bound: IpAddr) -> Self {
        Self {
            token,
            names,
            bound,
        }
    }

    /// What the bytes that came so far ask for, if they are a whole request. `local`: the address
    /// by which they came.
    pub(super) fn parse(&self, bytes: &[u8], local: IpAddr) -> Result<Option<Request>, Refusal> {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut parsed = httparse::Request::new(&mut headers);
        match parsed.parse(bytes) {
            Ok(httparse::Status::Complete(_)) => {}
            Ok(httparse::Status::Partial) if bytes.len() < LONGEST => return Ok(None),
            Ok(httparse::Status::Partial) => return refused(431, "the request is too long\n"),
            Err(error) => return refused(400, format!("{error}\n")),
        }
        let is_head = match parsed.method {
            Some("GET") => false,
            Some("HEAD") => true,
            _ => return refused(405, "pages are read with GET\n"),
        };
        self.check_host(parsed.headers, local)?;
        let path = parsed.path.unwrap_or_default();
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        if path == "/health" {
            let wanted = Wanted::Health;
            return Ok(Some(Request { wanted, is_head }));
        }
        if !self.is_token(parsed.headers, query) {
            return refused(
                401,
                "these pages are for who has their link: treadle scheduler shows it on a terminal, and \
                 Client.dashboard_link is it. It ends with ?token=…; programs may send the token \
                 as a header instead, Authorization: Bearer …\n",
            );
        }
        let wanted = match path {
            // `/status` is where dashboards of Dask are, and what people are sent to.
            "/" | "/status" => Wanted::Index,
            "/metrics" => Wanted::Page(Page::Metrics),
            "/json/state" => Wanted::Page(Page::State),
            _ => return refused(404, "there is no such page\n"),
        };
        Ok(Some(Request { wanted, is_head }))
    }

    /// A page of somebody else's site can have its name lead here ("DNS rebinding"), and would then
    /// be let in by the browser of a user who may come here. The name is what gives it away.
    fn check_host(&self, headers: &[httparse::Header<'_>], local: IpAddr) -> Result<(), Refusal> {
        let mut is_there = false;
        for header in headers {
            if header.name.eq_ignore_ascii_case("host") {
                is_there = true;
                let host = str::from_utf8(header.value).unwrap_or_default();
                if !self.is_own(name_of(host), local) {
                    return refused(
                        403,
                        "the Host of the request is no name of this server: use its address, or \
                         allow the name with `treadle scheduler --http-name NAME`\n",
                    );
                }
            }
        }
        match is_there {
            true => Ok(()),
            false => refused(400, "the request has no Host\n"),
        }
    }

    fn is_own(&self, name: &str, local: IpAddr) -> bool {
        if let Ok(address) = name.parse::<IpAddr>() {
            let address = address.to_canonical();
            return address.is_loopback() || address == local || address == self.bound;
        }
        let name = name.strip_suffix('.').unwrap_or(name);
        let mut names = self.names.iter().map(String::as_str);
        name.eq_ignore_ascii_case("localhost") || names.any(|own| own.eq_ignore_ascii_case(name))
    }

    fn is_token(&self, headers: &[httparse::Header<'_>], query: &str) -> bool {
        let in_query = query
            .split('&')
            .filter_map(|pair| Some(pair.strip_prefix("token=")?.as_bytes()));
        let in_header = headers
            .iter()
            .filter(|header| header.name.eq_ignore_ascii_case("authorization"))
            .filter_map(|header| {
                let (scheme, token) = header.value.split_at_checked(b"Bearer ".len())?;
                scheme
                    .eq_ignore_ascii_case(b"Bearer ")
                    .then_some(token.trim_ascii())
            });
        in_query
            .chain(in_header)
            .any(|token| secret::same(token, self.token.as_bytes()))
    }
}

/// The host of a `Host` header, without its port and brackets.
fn name_of(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split_once(']').map_or("", |(name, _)| name);
    }
    host.split_once(':').map_or(host, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 7));

    fn gate() -> Gate {
        Gate::new("0123456789abcdef".into(), vec!["node7".into()], LOCAL)
    }

    fn status(request: &str) -> u16 {
        match gate().parse(request.as_bytes(), LOCAL) {
            Ok(Some(_)) => 200,
            Ok(None) => 0,
            Err(refusal) => refusal.status,
        }
    }

    #[test]
    fn only_the_token_opens_the_pages() {
        let get = |path: &str, header: &str| {
            status(&format!(
                "GET {path} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n"
            ))
        };
        for path in ["/", "/status", "/metrics", "/json/state"] {
            assert_eq!(get(path, ""), 401, "{path}");
            assert_eq!(get(&format!("{path}?token=0123456789abcdef"), ""), 200);
            assert_eq!(get(&format!("{path}?x=1&token=0123456789abcdef"), ""), 200);
            assert_eq!(get(path, "Authorization: Bearer 0123456789abcdef\r\n"), 200);
            assert_eq!(
                get(path, "authorization: bearer  0123456789abcdef \r\n"),
                200
            );
        }
        for wrong in [
            "",
            "0123456789abcde",
            "0123456789abcdeF",
            "0123456789abcdef0",
        ] {
            assert_eq!(get(&format!("/metrics?token={wrong}"), ""), 401, "{wrong}");
            let header = format!("Authorization: Bearer {wrong}\r\n");
            assert_eq!(get("/metrics", &header), 401, "{wrong}");
        }
        assert_eq!(
            get("/metrics", "Authorization: Basic 0123456789abcdef\r\n"),
            401
        );
        // Who has no token does not learn what there is.
        assert_eq!(get("/nothing", ""), 401);
        assert_eq!(get("/nothing?token=0123456789abcdef", ""), 404);
        assert_eq!(get("/health", ""), 200);
    }

    #[test]
    fn only_names_of_this_server_are_hosts() {
        let host = |host: &str| status(&format!("GET /health HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        for own in [
            "localhost",
            "LocalHost:8787",
            "127.0.0.1",
            "127.0.0.1:8787",
            "[::1]:8787",
            "10.0.0.7:1",
            "node7",
            "NODE7:8787",
            "node7.",
            "[::ffff:127.0.0.1]",
        ] {
            assert_eq!(host(own), 200, "{own}");
        }
        for other in [
            "evil.example",
            "localhost.evil.example",
            "10.0.0.8",
            "127.0.0.1.evil.example",
            "node77",
            "[::2]",
            "[",
            "",
            "::1",
            "\u{7f}",
        ] {
            assert!(matches!(host(other), 403 | 400), "{other}");
        }
        assert_eq!(status("GET /health HTTP/1.1\r\n\r\n"), 400);
        let two = "GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n";
        assert_eq!(status(two), 403);
    }

    #[test]
    fn what_is_no_request_is_refused() {
        assert_eq!(status("GET /health HTT"), 0);
        assert_eq!(
            status("POST /health HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            405
        );
        assert_eq!(status("\0\u{1}\r\n\r\n"), 400);
        assert_eq!(status(&format!("GET /{}", "x".repeat(LONGEST))), 431);
    }
}
