//! What a request asks for, and whether it may.

use std::fmt;
use std::net::IpAddr;

use hyper::header::{AUTHORIZATION, HOST, HeaderMap};
use hyper::{Method, Request, StatusCode};
use treadle_security::secret;

use super::Refusals;

/// What is sent back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    /// Whether the server is there: nothing of the cluster, so anybody may know.
    Health,
    /// The names of the pages.
    Index,
    /// A page of the process: its place in the list.
    Page(usize),
}

/// Why a request is not answered: what is said instead.
type Refusal = (StatusCode, &'static str);

/// Who may see the pages, and by which names.
pub(super) struct Access {
    pub(super) token: String,
    /// Host names beside `localhost` and addresses.
    pub(super) names: Vec<String>,
    /// Where the server listens.
    pub(super) bound: IpAddr,
    /// Those of the process's pages, and whether they are for everybody.
    pub(super) paths: Vec<(&'static str, bool)>,
    pub(super) refusals: Refusals,
}

impl fmt::Debug for Access {
    /// Does not show the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access")
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

impl Access {
    /// What a request asks for. `local`: the address by which it came.
    pub(super) fn check<B>(&self, request: &Request<B>, local: IpAddr) -> Result<Wanted, Refusal> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let text = "pages are read with GET\n";
            return Err((StatusCode::METHOD_NOT_ALLOWED, text));
        }
        self.check_host(request, local)?;
        let path = request.uri().path();
        if path == "/health" {
            return Ok(Wanted::Health);
        }
        // `/status` is where dashboards of Dask are, and what people are sent to.
        let is_first = matches!(path, "/" | "/status");
        let path = if is_first { "/" } else { path };
        let page = self.paths.iter().position(|(own, _)| *own == path);
        if let Some(page) = page.filter(|page| self.paths[*page].1) {
            return Ok(Wanted::Page(page));
        }
        let query = request.uri().query().unwrap_or_default();
        if !self.is_token(request.headers(), query) {
            return Err((StatusCode::UNAUTHORIZED, self.refusals.unauthorized));
        }
        match page {
            Some(page) => Ok(Wanted::Page(page)),
            None if is_first => Ok(Wanted::Index),
            None => Err((StatusCode::NOT_FOUND, "there is no such page\n")),
        }
    }

    /// A page of somebody else's site can have its name lead here ("DNS rebinding"), and would then
    /// be let in by the browser of a user who may come here. The name is what gives it away.
    fn check_host<B>(&self, request: &Request<B>, local: IpAddr) -> Result<(), Refusal> {
        if !request.headers().contains_key(HOST) {
            return Err((StatusCode::BAD_REQUEST, "the request has no Host\n"));
        }
        let headers = request.headers().get_all(HOST).iter();
        let hosts = headers.map(|host| host.to_str().unwrap_or_default());
        // Asked as a proxy, it is told the host once more.
        let target = request.uri().authority().map(|target| target.as_str());
        match hosts
            .chain(target)
            .all(|host| self.is_own(name_of(host), local))
        {
            true => Ok(()),
            false => Err((StatusCode::FORBIDDEN, self.refusals.foreign_host)),
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

    fn is_token(&self, headers: &HeaderMap, query: &str) -> bool {
        let in_query = query
            .split('&')
            .filter_map(|pair| Some(pair.strip_prefix("token=")?.as_bytes()));
        let in_header = headers.get_all(AUTHORIZATION).iter().filter_map(|value| {
            let (scheme, token) = value.as_bytes().split_at_checked(b"Bearer ".len())?;
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

    fn access() -> Access {
        Access {
            token: "0123456789abcdef".into(),
            names: vec!["node7".into()],
            bound: LOCAL,
            paths: vec![
                ("/metrics", false),
                ("/json/state", false),
                ("/assets/a.js", true),
            ],
            refusals: Refusals {
                unauthorized: "no token",
                foreign_host: "another host",
                busy: "busy",
            },
        }
    }

    /// The status of the answer to a request with such headers.
    fn status(method: &str, target: &str, headers: &[(&str, &str)]) -> u16 {
        let mut request = Request::builder().method(method).uri(target);
        for &(name, value) in headers {
            request = request.header(name, value);
        }
        match request.body(()) {
            Ok(request) => {
                let wanted = access().check(&request, LOCAL);
                wanted.map_or_else(|(status, _)| status.as_u16(), |_| 200)
            }
            // The server has answered it.
            Err(_) => 400,
        }
    }

    #[test]
    fn only_the_token_opens_the_pages() {
        let get = |target: &str, headers: &[(&str, &str)]| {
            let headers = [&[("Host", "localhost")], headers].concat();
            status("GET", target, &headers)
        };
        for path in ["/", "/status", "/metrics", "/json/state"] {
            assert_eq!(get(path, &[]), 401, "{path}");
            assert_eq!(get(&format!("{path}?token=0123456789abcdef"), &[]), 200);
            let second = format!("{path}?x=1&token=0123456789abcdef");
            assert_eq!(get(&second, &[]), 200);
            for header in [
                ("Authorization", "Bearer 0123456789abcdef"),
                ("authorization", "bearer  0123456789abcdef "),
            ] {
                assert_eq!(get(path, &[header]), 200, "{header:?}");
            }
        }
        for wrong in [
            "",
            "0123456789abcde",
            "0123456789abcdeF",
            "0123456789abcdef0",
        ] {
            let target = format!("/metrics?token={wrong}");
            assert_eq!(get(&target, &[]), 401, "{wrong}");
            let header = format!("Bearer {wrong}");
            assert_eq!(
                get("/metrics", &[("Authorization", &header)]),
                401,
                "{wrong}"
            );
        }
        let basic = ("Authorization", "Basic 0123456789abcdef");
        assert_eq!(get("/metrics", &[basic]), 401);
        // Who has no token does not learn what there is.
        assert_eq!(get("/nothing", &[]), 401);
        assert_eq!(get("/nothing?token=0123456789abcdef", &[]), 404);
        assert_eq!(get("/health", &[]), 200);
        // What has nothing of the process is for everybody.
        assert_eq!(get("/assets/a.js", &[]), 200);
        assert_eq!(get("/assets/../metrics", &[]), 401);
    }

    #[test]
    fn only_names_of_this_server_are_hosts() {
        let host = |host: &str| status("GET", "/health", &[("Host", host)]);
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
        assert_eq!(status("GET", "/health", &[]), 400);
        let two = [("Host", "localhost"), ("Host", "evil.example")];
        assert_eq!(status("GET", "/health", &two), 403);
        let local = [("Host", "localhost")];
        assert_eq!(status("GET", "http://localhost/health", &local), 200);
        assert_eq!(status("GET", "http://evil.example/health", &local), 403);
    }

    #[test]
    fn pages_are_only_read() {
        for (method, expected) in [("GET", 200), ("HEAD", 200), ("POST", 405), ("PUT", 405)] {
            let local = [("Host", "localhost")];
            assert_eq!(status(method, "/health", &local), expected, "{method}");
        }
    }
}
