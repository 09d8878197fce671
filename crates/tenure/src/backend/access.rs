//! What a server wants to see of whoever asks it.

use std::fmt;
use std::path::PathBuf;

/// How a client of a Tenure server, or of etcd, proves who it is, and whom it believes. What is left out comes from the environment.
#[derive(Clone, Default)]
pub struct ServerAccess {
    /// The token, as `tenure token create` printed it. Else `$TENURE_ACCESS_TOKEN`, or the file that
    /// `$TENURE_ACCESS_TOKEN_FILE` names, which is read again when the server refuses what was in it.
    pub token: Option<String>,
    /// Whom etcd knows us as: `NAME:PASSWORD`. Else `$TENURE_ETCD_USER`.
    pub user: Option<String>,
    /// A file with the certificates of the authorities to believe, instead of the system's. Else `$TENURE_CA_FILE`.
    pub ca_file: Option<PathBuf>,
    /// A file with the client's own certificate. Else `$TENURE_CLIENT_CERT`.
    pub client_cert: Option<PathBuf>,
    /// A file with its private key. Else `$TENURE_CLIENT_KEY`.
    pub client_key: Option<PathBuf>,
}

/// Never shows the token or the password.
impl fmt::Debug for ServerAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerAccess")
            .field("token", &self.token.as_ref().map(|_| "…"))
            .field("user", &self.user.as_ref().map(|_| "…"))
            .field("ca_file", &self.ca_file)
            .field("client_cert", &self.client_cert)
            .field("client_key", &self.client_key)
            .finish()
    }
}
