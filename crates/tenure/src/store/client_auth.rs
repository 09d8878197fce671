//! Authentication of a client.

use std::fmt;
use std::path::PathBuf;

/// How a client authenticates to a Tenure server or to etcd, and which servers it trusts. Missing values come from the
/// environment.
#[derive(Clone, Default)]
pub struct ClientAuth {
    /// Access token, as `tenure credentials create` printed it. Default: `$TENURE_ACCESS_TOKEN`, or the file named by
    /// `$TENURE_ACCESS_TOKEN_FILE`, which is read again when the server rejects its content.
    pub access_token: Option<String>,
    /// etcd user, as `NAME:PASSWORD`. Default: `$TENURE_ETCD_USER`.
    pub user: Option<String>,
    /// File with the trusted CA certificates, instead of the system's. Default: `$TENURE_CA`.
    pub ca_file: Option<PathBuf>,
    /// File with the client certificate. Default: `$TENURE_CLIENT_CERT`.
    pub client_cert: Option<PathBuf>,
    /// File with the private key of the client certificate. Default: `$TENURE_CLIENT_KEY`.
    pub client_key: Option<PathBuf>,
}

/// Never shows the access token or the password.
impl fmt::Debug for ClientAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientAuth")
            .field("access_token", &self.access_token.as_ref().map(|_| "…"))
            .field("user", &self.user.as_ref().map(|_| "…"))
            .field("ca_file", &self.ca_file)
            .field("client_cert", &self.client_cert)
            .field("client_key", &self.client_key)
            .finish()
    }
}
