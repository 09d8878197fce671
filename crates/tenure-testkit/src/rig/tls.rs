//! A certificate authority for one test, created with `openssl`.

use std::path::Path;

use super::process::{ServerUser, run};
use super::{Context, Result};

/// Creates `ca.crt`, `server.crt` and `server.key` in `folder`, and `client.crt` and `client.key` for clients. The
/// server's certificate names `localhost` and `127.0.0.1`, so that `sslmode=verify-full` accepts it under these names
/// only.
pub(crate) fn make(user: &ServerUser, folder: &Path) -> Result<()> {
    let names = "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=critical,CA:FALSE\n";
    let extensions = folder.join("server.ext");
    std::fs::write(&extensions, names).context(|| format!("cannot write {}", extensions.display()))?;
    let openssl = |line: &str| run(user.command("openssl", folder).args(line.split(' '))).map(|_| ());
    let new_key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!(
        "req -x509 {new_key} -days 2 -subj /CN=tenure-rig-ca -keyout ca.key -out ca.crt \
         -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign"
    ))?;
    openssl(&format!("req -new {new_key} -subj /CN=localhost -keyout server.key -out server.csr"))?;
    openssl(
        "x509 -req -days 2 -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -extfile server.ext -out server.crt",
    )?;
    // One authority signs both certificates. The client certificate has no common name, because etcd's gateway rejects
    // one that has it.
    openssl(&format!("req -new {new_key} -subj /O=client -keyout client.key -out client.csr"))?;
    openssl(
        "x509 -req -days 2 -in client.csr -CA ca.crt -CAkey ca.key -CAcreateserial -extfile server.ext -out client.crt",
    )
}
