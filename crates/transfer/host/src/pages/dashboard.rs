//! The files of the dashboard, made by `make page` and part of this program. What it shows, the process that
//! serves it says at `/sight/overview`.

use bytes::Bytes;

use super::{Content, Page};

/// A file of the folder `page/dist`.
macro_rules! file {
    ($name:literal) => {
        include_bytes!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../../page/dist/",
            $name
        ))
    };
}

/// Paths, types and contents. The first one says where the others are, and nothing of the process: but who
/// sees it is told to bring the token.
const FILES: [(&str, &str, &[u8]); 3] = [
    ("/", "text/html; charset=utf-8", file!("index.html")),
    (
        "/assets/page.js",
        "text/javascript; charset=utf-8",
        file!("assets/page.js"),
    ),
    (
        "/assets/page.css",
        "text/css; charset=utf-8",
        file!("assets/page.css"),
    ),
];

/// The pages of the files.
pub fn files() -> impl Iterator<Item = Page> {
    FILES.into_iter().map(|(path, kind, bytes)| Page {
        path,
        is_open: path != "/",
        ask: Box::new(move |_, reply| {
            reply(Box::new(move || Content {
                lasts: path != "/",
                ..Content::new(kind, Bytes::from_static(bytes))
            }));
        }),
    })
}

/// The page once more, at a path that pages of others may show in a frame: it reads from its path which view it
/// shows alone.
pub fn alone(path: &'static str) -> Page {
    Page {
        path,
        is_open: false,
        ask: Box::new(|_, reply| {
            let (_, kind, bytes) = FILES[0];
            reply(Box::new(move || Content {
                in_frames: true,
                ..Content::new(kind, Bytes::from_static(bytes))
            }));
        }),
    }
}
