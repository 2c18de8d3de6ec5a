package oauth

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"golang.org/x/oauth2"
)

// fault tells why there is no token, and what to do about it.
func (s *Source) fault(err error) error {
	var answered *oauth2.RetrieveError
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(err, &answered):
		return s.refusal(answered)
	case errors.As(err, &certificate):
		return fmt.Errorf("oauth: the certificate of the token server isn't trusted: %w; name its authority in "+
			"tls.ca_file, or check the host in token_url", err)
	case strings.Contains(err.Error(), "missing access_token"), strings.Contains(err.Error(), "cannot parse"):
		// The library has no error of its own for these. Its words would show part of what may be a token.
		return fmt.Errorf("oauth: the answer of %s has no access_token in it; check that token_url is the token "+
			"endpoint, and not that of a login page or of the issuer", s.cfg.TokenURL)
	}
	return fmt.Errorf("oauth: no answer of the token server: %w; check token_url, and that the server can be reached from here", err)
}

// refusal takes of the server's words only those that the RFC knows: a body may be a page of HTML.
func (s *Source) refusal(r *oauth2.RetrieveError) error {
	words := r.Response.Status
	if r.ErrorCode != "" {
		words += fmt.Sprintf(", %.60q", r.ErrorCode)
	}
	if r.ErrorDescription != "" {
		words += fmt.Sprintf(": %.200q", r.ErrorDescription)
	}
	code := r.Response.StatusCode
	advice := "see its log for the reason"
	switch {
	case r.ErrorCode == "invalid_scope":
		advice = "check scopes"
	case r.ErrorCode == "unauthorized_client", r.ErrorCode == "unsupported_grant_type":
		advice = "allow the client the grant client_credentials there"
	case code == http.StatusUnauthorized, r.ErrorCode == "invalid_client":
		advice = "check client_id and client_secret"
	case code == http.StatusForbidden:
		advice = "allow the client the grant client_credentials and the scopes there"
	case code == http.StatusNotFound, code == http.StatusMethodNotAllowed:
		advice = "check token_url"
	case code >= 300 && code < 400:
		advice = fmt.Sprintf("it redirects to %.200q, where the secret is not sent; if that is right, make it token_url",
			r.Response.Header.Get("Location"))
	case code == http.StatusTooManyRequests, code >= 500:
		advice = "it is asked again; if that doesn't end, see its log"
	}
	return fmt.Errorf("oauth: %s gives no token to client %q: %s; %s", s.cfg.TokenURL, s.cfg.ClientID, words, advice)
}
