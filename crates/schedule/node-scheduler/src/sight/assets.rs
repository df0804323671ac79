//! The files of the page, made by `make page` and part of this program.

use bytes::Bytes;
use treadle_host::pages::{Content, Page};

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

/// Paths, types and contents. The first one says where the others are, and nothing of the cluster: but who
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
pub(crate) fn pages() -> impl Iterator<Item = Page> {
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
