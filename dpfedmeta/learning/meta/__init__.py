"""Client-side mathematics: adaptation and meta-gradients, and the algorithms made of them."""
