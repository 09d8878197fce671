//! The curl examples of the documentation.

use std::process::Stdio;

use tenure_server::settings::ListenAddress;
use tenure_server::{Server, Settings};
use tokio::process::Command;

use super::support::sqlite;

/// Shell block and its expected output.
struct Block {
    shell: String,
    prints: Option<String>,
}

fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for (n, part) in text.split("```").enumerate() {
        let Some((kind, content)) = part.split_once('\n').filter(|_| n % 2 == 1) else { continue };
        match kind {
            "sh" => blocks.push(Block { shell: content.into(), prints: None }),
            "json" => {
                blocks.last_mut().expect("an output block follows a shell block").prints =
                    Some(content.into())
            }
            _ => {}
        }
    }
    blocks
}

async fn server(folder: &std::path::Path) -> (Server, String) {
    let settings = Settings { listen: vec![ListenAddress::Tcp("127.0.0.1:0".into())], ..Settings::default() };
    let server = Server::start(settings, sqlite(folder).await).await.unwrap();
    let address = format!("http://{}", server.addresses()[0].socket_addr().unwrap());
    (server, address)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_examples_of_the_http_guide_run_as_written() {
    let blocks = blocks(include_str!("../../../../docs/HTTP.md"));
    assert!(blocks.len() > 8);
    runs_as_written(&blocks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_examples_of_the_readme_run_as_written() {
    let text = include_str!("../../../../README.md");
    let (_, text) = text.split_once("\n## HTTP\n").expect("the section on HTTP");
    let (text, _) = text.split_once("\n## ").expect("the next section");
    let blocks = blocks(text);
    assert_eq!(blocks.len(), 1);
    runs_as_written(&blocks).await;
}

/// Run the blocks with `T` set to the address of the test server.
async fn runs_as_written(blocks: &[Block]) {
    let folder = tempfile::tempdir().unwrap();
    let (server, address) = server(folder.path()).await;
    let marked: Vec<_> = blocks.iter().map(|block| format!("{}\necho '<end>'\n", block.shell)).collect();
    let shell = Command::new("bash")
        .args(["-euo", "pipefail", "-c", &marked.concat()])
        .env("T", address)
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = shell.await.expect("this test needs bash, curl and jq");
    let (stdout, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let printed: Vec<&str> = stdout.split("<end>\n").collect();
    for (block, printed) in blocks.iter().zip(&printed) {
        assert_eq!(block.prints.as_deref().unwrap_or_default(), *printed, "{}\n{error}", block.shell);
    }
    assert!(output.status.success(), "{error}");
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shell_leader_of_the_http_guide_resigns_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let (server, address) = server(folder.path()).await;
    let text = include_str!("../../../../docs/HTTP.md");
    let (_, leader) = text.split_once("```bash\n").unwrap();
    let (leader, _) = leader.split_once("```").unwrap();
    // An operator makes the leader resign after the second piece, so the third has a later token.
    let work = r#"one_piece_of_work() {
        echo "$1" >>work
        case $(wc -l <work) in
        2) curl -sSf -X POST "$T/v1/elections/nightly/resign" >/dev/null ;;
        3) exit 0 ;;
        esac
    }"#;
    let shell = Command::new("bash")
        .args(["-uo", "pipefail", "-c", &format!("{work}\n{leader}")])
        .env("T", address)
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = shell.await.expect("this test needs bash, curl and jq");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read_to_string(folder.path().join("work")).unwrap(), "1\n1\n2\n");
    server.shutdown().await;
}
