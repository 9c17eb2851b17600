"""Ed25519, X25519, HKDF-SHA256 and ChaCha20-Poly1305 of the package `cryptography`. Only the names are ours."""

from collections.abc import Callable
from hashlib import sha256

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dpfedmeta.core.errors import InputError
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused

# The next so many bytes of a secret source; os.urandom everywhere but in tests.
Randomness = Callable[[int], bytes]
SECRET_BYTES, SIGNATURE_BYTES = 32, 64
# A key seals one message, so its nonce need not differ from another's.
_ONLY_NONCE = bytes(12)


class Identity:
    """An Ed25519 key pair that lasts: a client's or the server's.

    Args:
        private: 32 bytes.

    Raises:
        InputError: Another size.
    """

    def __init__(self, private: bytes) -> None:
        if len(private) != SECRET_BYTES:
            raise InputError(f"private identity key: has {len(private)} bytes, expected {SECRET_BYTES}")
        self._key = Ed25519PrivateKey.from_private_bytes(private)
        self.public = self._key.public_key().public_bytes_raw()

    def sign(self, content: bytes) -> bytes:
        """64 bytes."""
        return self._key.sign(content)


def signed_by(public: bytes, signature: bytes, content: bytes) -> bool:
    """Return whether the holder of this key signed this content."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True


class Pair:
    """An X25519 key pair of one round.

    Args:
        private: 32 random bytes.
    """

    def __init__(self, private: bytes) -> None:
        self.private = private
        self._key = X25519PrivateKey.from_private_bytes(private)
        self.public = self._key.public_key().public_bytes_raw()

    def agreed(self, other: bytes) -> bytes:
        """The secret that the holder of the other key agrees on too; to be derived from, never used as it is.

        Raises:
            Refused: A key with which anybody would agree on the same secret (a point of low order).
        """
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(other))
        except ValueError:
            raise Refused("a public key is invalid: no secret can be agreed with it") from None


def check_public(key: bytes) -> None:
    """Check that an X25519 key can agree on a secret.

    Raises:
        Refused: A point of low order.
    """
    Pair(bytes(SECRET_BYTES)).agreed(key)


def derived(secret: bytes, context: bytes, size: int = 32) -> bytes:
    """Bytes for one use, named by the context (HKDF-SHA256, RFC 5869, without salt).

    Guarantee:
        Keys of two contexts tell nothing of each other or of the secret, as long as HKDF-SHA256 is a pseudo-random
        function.
    """
    return HKDF(SHA256(), size, None, context).derive(secret)


def committed(secret: bytes, context: bytes) -> bytes:
    """Commitment to a secret, by which it can be checked later; of 256 random bits it reveals nothing."""
    return sha256(b"commitment" + context + secret).digest()


def sealed(key: bytes, content: bytes, context: bytes) -> bytes:
    """Encrypted, with a tag over it and its context. The key seals nothing else, ever."""
    return ChaCha20Poly1305(key).encrypt(_ONLY_NONCE, content, context)


def unsealed(key: bytes, content: bytes, context: bytes) -> bytes:
    """Decrypt sealed content and check its tag.

    Raises:
        Refused: The tag fails.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(_ONLY_NONCE, content, context)
    except InvalidTag:
        raise Refused("a sealed share was changed: its tag is wrong") from None
