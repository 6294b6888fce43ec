//! `host download`, from a Hub in this process.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use capo_system::files::sha256_hex;
use insta::assert_snapshot;
use tests::artifacts::workspace;
use tests::{Folder, names};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// The model in the cache of a folder.
const CACHE: &str = "hf/hub/models--org--model";
const DOWNLOAD: &str = "download org/model";

/// Files of the Hub, and its behaviour.
struct Hub {
    address: String,
    files: BTreeMap<String, Vec<u8>>,
    /// What happens to the next answers with weights, in reverse order. Further answers are
    /// complete.
    faults: Mutex<Vec<Fault>>,
    /// The requests so far: method, path and range.
    asked: Mutex<Vec<String>>,
}

/// What happens to an answer with weights.
#[derive(Clone, Copy)]
enum Fault {
    /// The answer breaks off after this many bytes.
    Breaks(usize),
    /// After this many bytes nothing more comes, but the connection stays open.
    Stalls(usize),
    /// The answer is longer than it announced.
    Overflows,
    /// The answer redirects to itself, with an endless body.
    Leads,
}

impl Hub {
    /// A Hub with the embedded model as `org/model` and some files that are not needed, and a
    /// folder whose `host` downloads from it.
    fn open(faults: Vec<Fault>) -> (Folder, Arc<Self>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut files = BTreeMap::from([
            ("README.md".to_owned(), b"read me".to_vec()),
            ("pytorch_model.bin".to_owned(), b"pickles".to_vec()),
            ("merges.txt".to_owned(), b"a b".to_vec()),
        ]);
        for file in [
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
        ] {
            let path = workspace().join("host/assets/tiny-arithmetic").join(file);
            files.insert(file.to_owned(), std::fs::read(path).unwrap());
        }
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (faults, asked) = (Mutex::new(faults), Mutex::new(Vec::new()));
        let hub = Arc::new(Self {
            address,
            files,
            faults,
            asked,
        });
        let server = Arc::clone(&hub);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                server.answer(stream.unwrap());
            }
        });
        let folder = Folder::new();
        let home = folder.path().join("hf");
        (
            folder.env("HF_ENDPOINT", &hub.address).env("HF_HOME", home),
            hub,
        )
    }

    fn answer(&self, stream: TcpStream) {
        let mut lines = BufReader::new(&stream)
            .lines()
            .map_while(Result::ok)
            .take_while(|line| !line.is_empty());
        let Some(first) = lines.next() else { return };
        let headers: Vec<String> = lines.collect();
        let range = headers.iter().find_map(|header| {
            let (name, value) = header.split_once(": ")?;
            name.eq_ignore_ascii_case("range").then(|| {
                value
                    .trim_start_matches("bytes=")
                    .trim_end_matches('-')
                    .to_owned()
            })
        });
        let mut words = first.split(' ');
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        self.asked.lock().unwrap().push(
            format!("{method} {path} {}", range.as_deref().unwrap_or(""))
                .trim()
                .to_owned(),
        );
        self.respond(
            stream,
            method,
            path,
            range.map_or(0, |range| range.parse().unwrap()),
        );
    }

    fn respond(&self, mut stream: TcpStream, method: &str, path: &str, from: usize) {
        let mut send = |status: &str, headers: &str, body: &[u8], sent: usize| {
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n{headers}\r\n",
                body.len()
            );
            let _ = stream
                .write_all(head.as_bytes())
                .and_then(|()| stream.write_all(&body[..sent.min(body.len())]));
        };
        if path.starts_with("/api/models/org/model/revision/main") {
            let files: Vec<_> = self
                .files
                .iter()
                .map(|(name, bytes)| serde_json::json!({"rfilename": name, "size": bytes.len()}))
                .collect();
            let model = serde_json::json!({"id": "org/model", "sha": COMMIT, "siblings": files})
                .to_string();
            return send("200 OK", "", model.as_bytes(), usize::MAX);
        }
        if path.starts_with("/api/models/org/gated") {
            return send("401 Unauthorized", "", b"", 0);
        }
        let name = path
            .strip_prefix(&format!("/org/model/resolve/{COMMIT}/"))
            .unwrap_or_default();
        let Some(bytes) = self.files.get(name) else {
            return send("404 Not Found", "", b"", 0);
        };
        let weights = name.ends_with(".safetensors");
        // Small files are named by another kind of hash, which is not compared.
        let etag = if weights {
            sha256_hex(bytes)
        } else {
            sha256_hex(bytes)[..40].to_owned()
        };
        let linked = format!("ETag: \"{etag}\"\r\nX-Linked-Size: {}\r\n", bytes.len());
        if method == "HEAD" {
            return send("200 OK", &linked, bytes, 0);
        }
        let status = if from == 0 {
            "200 OK"
        } else {
            "206 Partial Content"
        };
        let fault = if weights {
            self.faults.lock().unwrap().pop()
        } else {
            None
        };
        match fault {
            None => send(status, &linked, &bytes[from..], usize::MAX),
            Some(Fault::Breaks(after)) => send(status, &linked, &bytes[from..], after),
            Some(Fault::Stalls(after)) => {
                send(status, &linked, &bytes[from..], after);
                // The connection is held until the other side gives up.
                std::thread::spawn(move || stream.read_exact(&mut [0]));
            }
            Some(endless @ (Fault::Overflows | Fault::Leads)) => {
                let (status, linked) = match endless {
                    Fault::Leads => ("302 Found", format!("Location: {path}\r\n")),
                    _ => (status, linked),
                };
                let _ = stream.write_all(
                    format!("HTTP/1.1 {status}\r\nConnection: close\r\n{linked}\r\n").as_bytes(),
                );
                let piece = vec![0; 1 << 20];
                // The loop ends when the other side hangs up.
                while stream.write_all(&piece).is_ok() {}
            }
        }
    }

    /// Number of requests that begin with this text.
    fn asked(&self, beginning: &str) -> usize {
        self.asked
            .lock()
            .unwrap()
            .iter()
            .filter(|request| request.starts_with(beginning))
            .count()
    }

    /// Asserts that the weights in the cache of `folder` are the Hub's.
    fn assert_fetched(&self, folder: &Folder) {
        assert!(
            folder.bytes(&format!("{CACHE}/snapshots/{COMMIT}/model.safetensors"))
                == self.files["model.safetensors"]
        );
    }
}

/// A folder whose `host` waits for at most one second.
fn impatient(folder: Folder) -> Folder {
    folder.env("HF_HUB_DOWNLOAD_TIMEOUT", "1")
}

#[test]
fn a_model_is_fetched_once_and_found_by_its_id() {
    let (folder, hub) = Hub::open(vec![]);
    let generate = "generate --model org/model --temperature 0 --max-completion-length 8 1+1=";
    assert_snapshot!(folder.refused(generate), @"no model `org/model`: neither a directory nor in the cache of the Hugging Face Hub, `FOLDER/hf/hub` (fetch it with `host download org/model`)");
    assert_eq!(hub.asked(""), 0, "no other command opens a socket");
    assert_eq!(
        folder.said(DOWNLOAD),
        format!("FOLDER/{CACHE}/snapshots/{COMMIT}\n")
    );
    let snapshot = folder.path().join(format!("{CACHE}/snapshots/{COMMIT}"));
    let needed = [
        "config.json",
        "merges.txt",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert!(names(&snapshot).into_iter().eq(needed));
    assert_eq!(folder.text(&format!("{CACHE}/refs/main")), COMMIT);
    assert!(snapshot.join("config.json").is_symlink());
    hub.assert_fetched(&folder);
    assert!(folder.said(generate).starts_with("1+1="));
    let fetched = hub.asked("GET /org/model/resolve");
    folder.said(DOWNLOAD);
    assert_eq!(
        hub.asked("GET /org/model/resolve"),
        fetched,
        "what is there is not fetched again"
    );
}

#[test]
fn a_fetch_that_breaks_off_leaves_no_model_and_goes_on() {
    let (folder, hub) = Hub::open(vec![Fault::Breaks(1000), Fault::Breaks(500)]);
    assert_snapshot!(folder.host(DOWNLOAD).failed(), @"`model.safetensors` was not fetched whole (run the command again; it goes on from there): the connection broke after 1500 of 504232 bytes: Peer disconnected");
    let cache = folder.path().join(CACHE);
    let weights = cache
        .join("snapshots")
        .join(COMMIT)
        .join("model.safetensors");
    assert!(!cache.join("refs").exists() && !weights.exists());
    let _ = folder.refused("generate --model org/model 1+1=");
    folder.said(DOWNLOAD);
    assert_eq!(
        hub.asked(&format!(
            "GET /org/model/resolve/{COMMIT}/model.safetensors 1500"
        )),
        1,
        "it goes on"
    );
    hub.assert_fetched(&folder);
}

#[test]
fn a_fetch_that_breaks_off_once_goes_on_by_itself() {
    for fault in [Fault::Breaks(1000), Fault::Stalls(1000)] {
        let (folder, hub) = Hub::open(vec![fault]);
        let folder = impatient(folder);
        folder.said(DOWNLOAD);
        assert_eq!(
            hub.asked(&format!(
                "GET /org/model/resolve/{COMMIT}/model.safetensors 1000"
            )),
            1
        );
        hub.assert_fetched(&folder);
    }
}

#[test]
fn ends_a_silent_and_an_endless_answer() {
    let said = |faults: Vec<Fault>| {
        let (folder, hub) = Hub::open(faults);
        let folder = impatient(folder);
        let sentence = folder.host(DOWNLOAD).failed();
        let blobs = folder.path().join(CACHE).join("blobs");
        let most = names(&blobs)
            .iter()
            .map(|name| blobs.join(name).metadata().unwrap().len())
            .max()
            .unwrap();
        assert!(
            most <= hub.files["model.safetensors"].len() as u64,
            "{most} bytes were written"
        );
        sentence
    };
    assert_snapshot!(said(vec![Fault::Stalls(7), Fault::Stalls(3)]), @"`model.safetensors` was not fetched whole (run the command again; it goes on from there): the connection broke after 10 of 504232 bytes: nothing came for 1 s (`HF_HUB_DOWNLOAD_TIMEOUT` sets the limit)");
    assert_snapshot!(said(vec![Fault::Overflows]), @"`model.safetensors` was not fetched whole (run the command again; it goes on from there): what came is not what the Hub said, and was thrown away");
    // A Hub that accepts the connection and never answers.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let sentence = impatient(Hub::open(vec![]).0)
        .env("HF_ENDPOINT", address)
        .refused(DOWNLOAD);
    assert!(
        sentence.ends_with("nothing came for 1 s (`HF_HUB_DOWNLOAD_TIMEOUT` sets the limit)"),
        "{sentence}"
    );
}

#[test]
fn redirects_are_followed_whatever_comes_with_them() {
    Hub::open(vec![Fault::Leads; 2]).0.said(DOWNLOAD);
    let sentence = Hub::open(vec![Fault::Leads; 30]).0.host(DOWNLOAD).failed();
    assert!(
        sentence.ends_with("leads from place to place (more than 10 times)"),
        "{sentence}"
    );
}

#[test]
fn discards_contents_with_another_hash() {
    let (folder, hub) = Hub::open(vec![]);
    let partial = format!(
        "{CACHE}/blobs/{}.incomplete",
        sha256_hex(&hub.files["model.safetensors"])
    );
    folder.write(&partial, "others");
    assert_snapshot!(folder.host(DOWNLOAD).failed(), @"`model.safetensors` was not fetched whole (run the command again; it goes on from there): what came is not what the Hub said, and was thrown away");
    assert!(!folder.path().join(&partial).exists());
    folder.said(DOWNLOAD);
}

#[test]
fn refuses_bad_answers_of_the_hub() {
    let (folder, hub) = Hub::open(vec![]);
    let refused = |args: &str| {
        folder
            .refused(&format!("download {args}"))
            .replace(&hub.address, "HUB")
    };
    assert_snapshot!(refused("org/absent"), @"`HUB` has no model `org/absent` with the revision `main`");
    assert_snapshot!(refused("org/model --revision v2"), @"`HUB` has no model `org/model` with the revision `v2`");
    assert_snapshot!(refused("org/gated"), @"`HUB` gives `org/gated` to nobody without a token: there is no such model, or one has to ask for it (accept its terms at `HUB/org/gated`, and set `HF_TOKEN`)");
    assert_snapshot!(refused("org/model --revision ../x"), @"`../x` is no revision (give a branch, a tag or a commit)");
    assert_snapshot!(refused("org/model/x"), @"`org/model/x` is no id of a model (give one as in `Qwen/Qwen2.5-0.5B`)");
    // The listener is closed, so nobody listens on its port.
    let nobody = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let sentence = folder
        .env("HF_ENDPOINT", format!("http://{nobody}"))
        .refused(DOWNLOAD);
    assert!(
        sentence.starts_with(&format!(
            "cannot reach `http://{nobody}/api/models/org/model"
        )),
        "{sentence}"
    );
}
