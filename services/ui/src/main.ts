import { createPinia } from 'pinia'
import { createApp } from 'vue'
import App from './App.vue'
import { router } from './router'
import './styles/tokens.css'
import './styles/base.css'

// The gateway takes the token of a link that it accepts out of the address.
const linkRefused = location.pathname === '/' && new URLSearchParams(location.search).has('token')

createApp(App, { linkRefused }).use(createPinia()).use(router).mount('#app')
